"""`dg-lsp` with the directory of a tiny random DiffusionGemma: the text is noise, everything around it is real."""

import json

import pytest

from dg_lsp.cli import run

ONE = ("--threads", 1)


@pytest.fixture
def dg_lsp(capsys):
    def call(*arguments):
        code = run([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "totals.py"
    path.write_text("def total(items):\n    return \n", encoding="utf-8")
    return path


def test_fill_runs_to_its_end(dg_lsp, source, tiny_checkpoint):
    code, out, err = dg_lsp("fill", f"{source}:2", "--model", tiny_checkpoint, "--json", "--deadline", 2000, *ONE)
    result = json.loads(out)
    assert code == (0 if result["text"] else 1) and err == ""
    assert (result["model"], result["canvas_length"]) == ("tiny-diffusiongemma", 32)
    assert result["decoder"] == "diffusion"
    assert result["steps"] >= 1 and result["prompt_tokens"] > 100 and result["cached_tokens"] == 0
    assert result["text"] or result["rejected"]
    assert all(result["timings_ms"][stage] > 0 for stage in ("load", "prefill", "denoise", "total"))
    assert source.read_text() == "def total(items):\n    return \n"


def test_several_candidates_share_each_pass(dg_lsp, source, tiny_checkpoint):
    options = ("--candidates", 2, "--json", "--deadline", 1500, *ONE, "--prompt-format", "prefix")
    _, out, _ = dg_lsp("fill", f"{source}:2", "--model", tiny_checkpoint, *options)
    result = json.loads(out)
    assert result["decoder"] == "diffusion" and result["steps"] >= 1 and result["prompt_tokens"] < 30


def test_the_visual_rows_are_canvases(dg_lsp, source, tiny_checkpoint):
    code, out, _ = dg_lsp("fill", f"{source}:2", "--model", tiny_checkpoint, "--visual", "--deadline", 300, *ONE)
    assert code in (0, 1) and len(out.splitlines()) > 3


def test_show_says_what_the_checkpoint_is(dg_lsp, tiny_checkpoint):
    code, out, _ = dg_lsp("models", "show", tiny_checkpoint)
    assert code == 0
    assert "description: checkpoint of 0.00 B weights in float32" in out
    assert "noise: uniform" in out and "prompt_format: instruct" in out


@pytest.mark.parametrize(
    ("name", "code", "says"), [("empty", 3, "config.json"), ("other", 3, "qwen3 checkpoint"), ("gone", 3, "gone")]
)
def test_bad_directories_are_one_line(dg_lsp, source, tmp_path, name, code, says):
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text('{"model_type": "qwen3"}', encoding="utf-8")
    found, out, err = dg_lsp("fill", f"{source}:2", "--model", tmp_path / name)
    assert (found, out) == (code, "")
    assert says in err and err.count("\n") == 1


def test_a_device_that_is_not_there_is_wrong_use(dg_lsp, source, tiny_checkpoint, tmp_path, monkeypatch):
    (tmp_path / "dg-lsp.toml").write_text('[runtime]\ndevice = "cuda:7"\n', encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    code, _, err = dg_lsp("fill", f"{source}:2", "--model", tiny_checkpoint)
    assert code == 2 and "torch sees 0 GPUs" in err
