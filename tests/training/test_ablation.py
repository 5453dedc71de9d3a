# ruff: noqa: E402 - what may be missing is asked for first
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tokenizers")

from dg_lsp.training import ablation
from dg_lsp.training.ablation import Variant, ablate, rows, variants


@pytest.fixture
def base(toy, monkeypatch):
    base = replace(toy.config, name="nano", causal_share=0.0)
    monkeypatch.setattr(ablation, "BASE", base)
    monkeypatch.setattr(ablation, "NUM_HELD_OUT", 1)
    return base


def test_each_variant_changes_the_recipe_and_has_a_name_of_its_own():
    first, *others = variants()
    assert len({variant.name for variant in variants()}) == len(variants())
    assert all(variant.config != first.config or variant.averaged != first.averaged for variant in others)


def test_the_same_variant_gives_the_same_losses_and_a_changed_one_others(toy, base):
    chosen = (Variant("a", base), Variant("b", base), Variant("c", replace(base, next_weight=0.1)))
    results = [losses for _, losses in ablate(toy.root, 3, chosen)]
    keys = ("ar_middle", "content", "fill")
    first, again, changed = ([losses[key] for key in keys] for losses in results)
    assert first == again
    assert first != changed
    assert not (toy.root / "runs").exists()


def test_results_are_a_table(toy, base):
    lines = list(rows(ablate(toy.root, 2, (Variant("one", base),))))
    assert lines[0].startswith("| variant |")
    assert len(lines) == 3
