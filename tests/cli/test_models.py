"""`dg-lsp models`: list, show, pull and `auto`. A local hub serves the bundled weights under another name."""

import dataclasses
import hashlib
import io
from unittest.mock import Mock

import hub_server
import presets
import pytest

from dg_lsp import system
from dg_lsp.backends import llamacpp
from dg_lsp.backends.llamacpp.library import Device
from dg_lsp.cli import models
from dg_lsp.cli.models import Pull
from dg_lsp.engine.request import FillResult
from dg_lsp.errors import ModelError
from dg_lsp.models import registry
from dg_lsp.models.registry import BUNDLED, PRESETS, find_family
from dg_lsp.runtime import RuntimeSearch
from dg_lsp.system import is_present


def test_list_is_a_table_of_all_models(dg_lsp):
    outcome = dg_lsp("models", "list")
    assert outcome.code == 0
    header, *rows = outcome.out.split("\n\n")[0].splitlines()
    assert header.split() == ["model", "here", "fits", "here", "size", "made", "for", "licence"]
    rows = {row.split()[0]: row for row in rows}
    here = header.index("here")
    assert {name: row[here:].split()[0] for name, row in rows.items()} == {
        "dg-mini": "yes", "dg-base": "yes", **{preset.name: "no" for preset in PRESETS}
    }  # fmt: skip
    assert rows["dg-mini"][header.index("size") :].startswith("6 MB")
    assert "Gemma Terms of Use" in rows["gemma3-270m"]


def test_list_prints_whether_a_model_fits_into_the_gpu(dg_lsp, monkeypatch):
    monkeypatch.setattr(llamacpp, "devices", lambda: (Device("RTX", "gpu", 8 << 30, 8 << 30),))
    monkeypatch.setattr(system, "system_free", lambda: 4 << 30)
    models = {model["name"]: model for model in dg_lsp("models", "list", "--json").json}
    assert (models["dream-coder-7b"]["fit"], models["dream-coder-7b"]["hardware"]) == ("yes: RTX", "GPU with 8 GB")
    assert models["diffusiongemma-bf16"]["fit"] == "no: 8.6 GB free"
    assert (models["dg-mini"]["path"], models["dream-7b"]["path"]) == (str(BUNDLED[0].path), None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("dg-maxi", "no model 'dg-maxi' to fetch (did you mean dg-mini?): use"),
        ("qwen2.5-coder0.5b", "(did you mean qwen2.5-coder-0.5b?)"),
        ("smollm2-135m --revision main", "has no other versions"),
    ],
)
def test_wrong_use_of_pull_is_exit_code_2(dg_lsp, arguments, message):
    assert message in dg_lsp("models", "pull", *arguments.split()).error(2)


def test_show_prints_specification_and_metadata(dg_lsp):
    outcome = dg_lsp("models", "show")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.facts.items() >= {"name": "dg-mini", "noise": "mask", "fim family": "dg-mini"}.items()
    assert "  dg.version = 1\n" in outcome.out
    assert outcome.facts["fim prompt"] == "<|suffix|>{suffix}<|prefix|>{prefix}<|middle|>"
    assert "tokenizer." not in outcome.out
    assert dg_lsp("models", "show", "dg-mini").out == outcome.out
    by_path = dg_lsp("models", "show", BUNDLED[0].path)
    assert by_path.out == outcome.out


WEIGHTS = BUNDLED[0].path.read_bytes()
TINY = presets.make(
    len(WEIGHTS),
    patterns=("Tiny.Q8_0.gguf",),
    sha256=hashlib.sha256(WEIGHTS).hexdigest(),
    family=find_family("dream"),
    quality=0.5,
    quality_source="estimate",
)


FILES = {"Tiny.Q8_0.gguf": WEIGHTS, "Tiny.Q2_K.gguf": b"GGUF" + b"2" * 100}


def test_a_model_is_listed_and_shown_before_and_after_its_pull_and_completes(dg_lsp, hub, position):
    def listed():
        return next(model for model in dg_lsp("models", "list", "--json").json if model["name"] == "tiny")

    assert (listed()["path"], listed()["is_begun"], listed()["note"]) == (None, False, "for tests")
    before = dg_lsp("models", "show", "tiny")
    assert before.code == 0
    assert before.facts.items() >= {
        "family architecture": "dream", "family canvas lengths": "16, 32, 64, 128", "licence": "MIT",
        "sha256": TINY.sha256, "sources": "a book",
    }.items()  # fmt: skip
    assert "mask id: 151666" in before.facts["family sampling"]
    assert "from the file:" not in before.out.splitlines()
    outcome = dg_lsp("models", "pull", "tiny")
    path = TINY.folder / "Tiny.Q8_0.gguf"
    assert (outcome.code, outcome.out) == (0, f"{path}\n")
    assert "tiny comes from somebody/Tiny-GGUF; its licence: MIT\n" in outcome.err
    assert path.read_bytes() == WEIGHTS
    hub.requests.clear()
    again = dg_lsp("models", "pull", "tiny")
    assert (again.code, again.out, again.err, hub.requests) == (0, outcome.out, "", [])
    assert listed()["path"] == str(path)
    assert "  dg.version = 1\n" in dg_lsp("models", "show", "tiny").out.split("from the file:\n")[1]
    filled = dg_lsp("fill", position, "--model", "tiny", "--json")
    assert (filled.code, filled.json["model"]) == (0, "tiny")


def test_pull_fetches_another_version_and_keeps_the_present_one_where_it_cannot(dg_lsp, hub, monkeypatch):
    monkeypatch.setattr(registry, "PRESETS", (dataclasses.replace(TINY, sha256="0" * 64),))
    assert "pass --revision main" in dg_lsp("models", "pull", "tiny").err.splitlines()[-1]
    outcome = dg_lsp("models", "pull", "tiny", "--revision", "main")
    assert (outcome.code, outcome.out) == (0, f"{TINY.folder / 'Tiny.Q8_0.gguf'}\n")

    monkeypatch.setattr(models, "fetch", Mock(side_effect=ModelError("no such version")))
    assert dg_lsp("models", "pull", "tiny", "--revision", "v2").code == 3
    assert dg_lsp("models", "pull", "tiny").err == ""


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("\n", 2), (None, 2)], ids=["yes", "default", "no terminal"])
def test_terms_are_accepted_or_declined_before_a_download(dg_lsp, hub, terminal, monkeypatch, answer, code):
    monkeypatch.setattr(registry, "PRESETS", (dataclasses.replace(TINY, terms="https://example.org/terms"),))
    monkeypatch.setattr("sys.stdin", io.StringIO()) if answer is None else terminal(answer)
    outcome = dg_lsp("models", "pull", "tiny")
    assert outcome.code == code
    assert "https://example.org/terms" in outcome.err
    assert bool(hub.requests) is (code == 0)
    assert ("--accept-licence" in outcome.err) == (answer is None)
    assert dg_lsp("models", "pull", "tiny", "--accept-licence").code == 0


def test_a_model_that_fails_its_test_stays_and_is_tested_again(dg_lsp, hub, monkeypatch):
    monkeypatch.setattr(registry, "PRESETS", (dataclasses.replace(TINY, patterns=("Tiny.Q2_K.gguf",), sha256=""),))
    outcome = dg_lsp("models", "pull", "tiny")
    assert (outcome.code, outcome.out) == (3, "")
    assert "tiny is on this machine, but its test fill failed: " in outcome.err.splitlines()[-1]
    path = TINY.folder / "Tiny.Q2_K.gguf"
    path.write_bytes(path.read_bytes())
    hub.requests.clear()
    again = dg_lsp("models", "pull", "tiny")
    assert [line for line in again.err.splitlines() if line.startswith("[")] == ["[1/1] test"]
    assert (again.code, hub.requests) == (3, [])


@pytest.mark.parametrize("disk", ["", "disk"], ids=["own folder", "link to another disk"])
def test_a_removed_model_is_gone_and_its_checksum_is_kept(dg_lsp, hub, monkeypatch, tmp_path, disk):
    monkeypatch.setattr(registry, "PRESETS", (dataclasses.replace(TINY, sha256=""),))
    if disk:
        (tmp_path / disk).mkdir()
        TINY.folder.parent.mkdir(parents=True)
        TINY.folder.symlink_to(tmp_path / disk)
    dg_lsp("models", "pull", "tiny")
    outcome = dg_lsp("models", "rm", "tiny")
    assert (outcome.code, outcome.out) == (0, f"removed {TINY.folder} (6 MB)\n")
    assert not is_present(TINY.folder)
    assert not (disk and (tmp_path / disk).exists())
    shown = dg_lsp("models", "show", "tiny").facts
    assert shown["pinned commit"] == hub_server.COMMIT
    assert "tiny is not on this machine" in dg_lsp("models", "rm", "tiny").error(2)
    assert "dg-mini cannot be pulled or removed: use" in dg_lsp("models", "rm", "dg-mini").error(2)
    assert "dg-maxi cannot be pulled or removed (did you mean dg-mini?)" in dg_lsp("models", "rm", "dg-maxi").error(2)


def test_auto_selects_a_pulled_model_whose_test_was_finished(dg_lsp, hub, monkeypatch, position, user_settings):
    monkeypatch.setattr(llamacpp, "devices", lambda: (Device("RTX", "gpu", 8 << 30, 8 << 30),))
    monkeypatch.setattr(system, "memory_bandwidth", lambda _num_cores: 20e9)  # a busy machine has less
    monkeypatch.delenv("DG_LSP_AUTO_MODEL")
    dg_lsp("models", "pull", "tiny")
    fill = ("fill", position, "--model", "auto", "--json")
    filled = dg_lsp(*fill)
    assert (filled.code, filled.json["model"]) == (0, "tiny")
    assert "dg-lsp: auto selects tiny: the best model here, about 5" in filled.err
    assert " on RTX, by estimate\n" in filled.err
    assert " on CPU, by estimate\n" in dg_lsp(*fill, "--gpu-layers", "0").err
    user_settings('[model]\ndevice = "cpu"\n')
    assert " on CPU, by estimate\n" in dg_lsp(*fill).err
    (TINY.folder / registry.TESTED).unlink()
    assert dg_lsp("models", "show", "auto").facts["name"] == "dg-base"


def test_a_test_fill_without_a_completion_is_a_warning(dg_lsp, monkeypatch, capsys):
    monkeypatch.setattr(models, "trial_fill", lambda *_: FillResult.unfinished())
    models.try_model("dg-mini")
    assert "dg-lsp: warning: dg-mini completed no simple line within 20 s: the result" in capsys.readouterr().err


def test_pull_builds_the_llama_cpp_that_a_diffusiongemma_needs(dg_lsp, hub, monkeypatch):
    monkeypatch.setattr(models, "find_runtime", lambda: RuntimeSearch(None))
    monkeypatch.setattr(models, "make_runtime", build := Mock())
    monkeypatch.setattr(Pull, "_convert", lambda _: TINY.converted_path.write_bytes(WEIGHTS))
    preset = dataclasses.replace(TINY, family=find_family("diffusion-gemma"), needs_conversion=True)
    monkeypatch.setattr(registry, "PRESETS", (preset,))
    outcome = dg_lsp("models", "pull", "tiny")
    steps = [line for line in outcome.err.splitlines() if line.startswith("[")]
    assert steps == ["[1/4] download", "[2/4] convert", "[3/4] build", "[4/4] test"]
    build.assert_called_once_with()
    assert dg_lsp("models", "pull", "tiny").err == ""
