import subprocess
import sys

import pytest

import dg_lsp.training.__main__ as entry


def test_without_the_extra_one_line_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr(entry, "NEEDED", ("torch_that_is_not_there", "tokenizers"))
    assert entry.main() == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "torch_that_is_not_there" in err
    assert "pip install 'dg-lsp[training]'" in err
    assert err.count("\n") == 1


def test_help_names_the_commands():
    pytest.importorskip("torch")
    pytest.importorskip("tokenizers")
    done = subprocess.run(
        [sys.executable, "-m", "dg_lsp.training", "--help"], capture_output=True, text=True, check=True
    )
    for command in ("data", "benchmarks", "pack", "unpack", "sites", "train", "export", "eval"):
        assert command in done.stdout


def test_a_toy_run_from_training_to_gguf(toy, tmp_path, monkeypatch):
    """`train` in two parts, then `export`, through the command line as a user calls it."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("gguf")
    from typer.testing import CliRunner

    from dg_lsp.training import commands, trainer
    from dg_lsp.training.config import CONFIGS
    from dg_lsp.training.weights import weights_of

    monkeypatch.setitem(CONFIGS, "mini", toy.replace(toy.config, name="mini"))
    monkeypatch.setattr(trainer, "NUM_VALIDATION", 1)
    monkeypatch.setattr(torch.nn.Module, "compile", lambda _self, **_options: None)
    monkeypatch.setattr(torch, "compile", lambda function, **_options: function)
    for name in ("tokenizer.json", "train", "val"):
        (tmp_path / name).symlink_to(toy.root / name)
    options = ["--config", "mini", "--root", str(tmp_path)]
    for more in ([], ["--resume"]):
        done = CliRunner().invoke(commands.app, ["train", *options, "--part", "0.02", "--threads", "1", *more])
        assert done.exit_code == 0, done.output
    done = CliRunner().invoke(commands.app, ["export", *options, "--pieces"])
    assert done.exit_code == 0, done.output
    (tmp_path / "runs" / "mini-weights.pt").unlink()
    weights = weights_of(tmp_path / "runs" / "mini-weights.pt", averaged=True)  # joined from its pieces
    assert weights.tokens_seen > 0
    assert (tmp_path / "runs" / "mini-q8_0.gguf").stat().st_size > 10_000
