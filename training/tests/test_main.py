import json
import sys
from dataclasses import replace

import pytest
from typer.testing import CliRunner

import dg_training.__main__ as command_line
from dg_lsp.bench.dataset import TestCase
from dg_training import train
from dg_training.evaluate import write_cases
from dg_training.store import write_texts


def test_missing_dependencies_are_reported_in_one_line(monkeypatch, capsys):
    monkeypatch.setattr(command_line, "REQUIRED", ("torch_that_is_not_there", "tokenizers"))
    assert command_line.main() == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("training needs torch_that_is_not_there: in a clone, run pip install torch")
    assert err.count("\n") == 1


def test_an_error_is_one_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["dg_training", "eval", "--gguf", "none.gguf", "--root", "."])
    assert command_line.main() == 3
    assert capsys.readouterr() == ("", "none.gguf does not exist: check the path of the model\n")


def invoke(*arguments):
    done = CliRunner().invoke(command_line.app, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    return done.output


def test_help_lists_the_commands():
    output = invoke("--help")
    names = ("data", "benchmarks", "test-cases", "train", "export", "eval", "gpu-day", "adapt")
    assert all(f" {name} " in output for name in names)


@pytest.fixture
def toy_config(toy, monkeypatch):
    """The toy configuration in place of `tiny`."""
    monkeypatch.setattr(train, "TINY", replace(toy.config, name="tiny"))
    monkeypatch.setattr(train, "VALIDATION_TOKENS", 1)


def test_a_toy_model_is_trained_in_two_parts_exported_and_evaluated(toy_config, work_folder):
    options = ["--root", work_folder]
    for more in ([], ["--resume"]):
        invoke("train", *options, "--part", "0.02", *more)
    invoke("export", *options)
    model = work_folder / "runs" / "tiny-q8_0.gguf"
    assert model.stat().st_size > 10_000
    cases, statistics = work_folder / "cases.jsonl.gz", work_folder / "statistics.json"
    write_cases(cases, [TestCase("a", "line-end", "total = count\nvalue = ", "\n", "total")])
    output = invoke("eval", *options, "--cases", cases, "--batches", "1", "--statistics", statistics)
    assert "losses in nats" in output
    table = json.loads(statistics.read_text())
    assert all(name in output for name in table)
    invoke("export", *options, "--statistics", statistics, "--out", work_folder / "b.gguf")
    assert (work_folder / "b.gguf").stat().st_size > model.stat().st_size


def test_test_cases_are_written_from_the_validation_split(work_folder, sample_files):
    write_texts(work_folder / "val.jsonl.xz", sample_files)
    out = work_folder / "cases.jsonl.gz"
    assert "1000 test cases" in invoke("test-cases", "--root", work_folder, "--out", out)
