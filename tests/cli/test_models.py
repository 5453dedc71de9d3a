import pytest

from dg_lsp.models.presets import PRESETS
from dg_lsp.models.registry import BUNDLED


@pytest.fixture(autouse=True)
def data_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("DG_LSP_DATA_DIR", str(tmp_path / "data"))


def test_list_names_the_models_with_their_sizes(dg_lsp):
    outcome = dg_lsp("models", "list")
    assert outcome.code == 0
    size = f"{BUNDLED[0].path.stat().st_size / 1e6:.1f} MB"
    bundled, *others = outcome.out.splitlines()
    assert bundled == f"dg-mini  {size}  {BUNDLED[0].path}"
    assert [row.split()[0] for row in others] == [preset.name for preset in PRESETS]
    assert all(f"not here yet: dg-lsp models pull {row.split()[0]}  (" in row for row in others)
    assert "Gemma Terms of Use" in others[-1]


def test_a_bundled_model_needs_no_pull(dg_lsp):
    assert dg_lsp("models", "pull", "dg-mini").code == 0


@pytest.mark.parametrize("arguments", [["dg-maxi"], ["gemma3-270m", "--from", "gone"]])
def test_pull_of_what_is_not_there_is_exit_code_2(dg_lsp, arguments):
    outcome = dg_lsp("models", "pull", *arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert arguments[-1] in outcome.err


def test_show_of_a_model_that_was_not_pulled_prints_its_preset(dg_lsp):
    outcome = dg_lsp("models", "show", "gemma3-270m")
    assert outcome.code == 0
    assert "location: not here yet: dg-lsp models pull gemma3-270m\n" in outcome.out


def test_show_prints_spec_and_metadata(dg_lsp):
    outcome = dg_lsp("models", "show")
    assert outcome.code == 0
    assert outcome.err == ""
    assert "name: dg-mini\n" in outcome.out
    assert "noise: mask\n" in outcome.out
    assert "  dg.version = 1\n" in outcome.out
    assert "tokenizer." not in outcome.out
    assert dg_lsp("models", "show", "dg-mini").out == outcome.out
    by_path = dg_lsp("models", "show", BUNDLED[0].path)
    assert by_path.out == outcome.out


def test_show_of_an_unknown_model_is_exit_code_3(dg_lsp):
    outcome = dg_lsp("models", "show", "dg-maxi")
    assert (outcome.code, outcome.out) == (3, "")
    assert "dg-mini" in outcome.err
