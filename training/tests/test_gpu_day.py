"""A run on a machine that is lent for minutes: packed, cut off, continued, brought home, and a file that fills."""

import json
import os
import signal
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest
import torch
from tiny_causal import write
from typer.testing import CliRunner

import dg_training.__main__ as command_line
from dg_lsp.errors import InputFileError
from dg_training import commands, gpu_day
from dg_training.pretrained import read_pretrained
from dg_training.store import read_texts

MIB = 2**20
ROOT = Path(__file__).parents[1]


def test_a_packed_run_is_unpacked_once_all_slices_have_come(toy, tmp_path):
    model = tmp_path / "model.gguf"
    model.write_bytes(bytes(200_000))
    packed, there = tmp_path / "packed", tmp_path / "there"
    gpu_day.pack(toy.root, packed, model, 0.1)
    slices = sorted(packed.glob("run.tar.*"))
    first = tmp_path / "first"
    first.mkdir()
    slices[0].rename(first / slices[0].name)
    assert not gpu_day.unpack([packed], there)
    assert gpu_day.unpack([first], there)
    assert (there / "start.gguf").read_bytes() == model.read_bytes()
    for name in ("train.jsonl.xz", "val.jsonl.xz"):
        assert read_texts(there / name) == read_texts(toy.root / name)


def test_without_a_corpus_nothing_is_packed(tmp_path):
    with pytest.raises(InputFileError, match="python -m dg_training data"):
        gpu_day.pack(tmp_path, tmp_path / "packed")


RUN = """
import sys
from dg_training import adapt, train
from dg_training.rows import RowConfig
import dg_training.__main__ as command_line
adapt.CPU_ROWS = RowConfig(4, 96, 64, 24, canvas_lengths=(8,), canvas_shares=(1.0,))
train.VALIDATION_TOKENS, train.REPORT_STEPS = 1, 2
import torch
torch.set_num_threads(1)
sys.exit(command_line.main())
"""


def invoke(*arguments):
    done = CliRunner().invoke(commands.app, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    return done.output


def test_a_run_that_is_cut_off_goes_on_and_its_file_fills(toy, tmp_path):
    write(tmp_path / "source.gguf", "llama", toy.texts[:50])
    first = tmp_path / "first.gguf"
    once = ("--steps", 0, "--tokens", 640, "--format", "F32")
    invoke("adapt", tmp_path / "source.gguf", "--root", toy.root, "--out", first, *once)
    invoke("gpu-day", "pack", "--root", toy.root, "--to", tmp_path / "packed", "--start", first, "--size", 8)
    (tmp_path / "run.py").write_text(RUN)
    there, homes = tmp_path / "there", [tmp_path / f"home-{i}" for i in range(4)]

    def command(home, *arguments, **limits):
        options = {"--root": there, "--every": 0.01, "--minutes": 0.5, "--size": 0.1, "--format": "F32", **limits}
        line = [sys.executable, tmp_path / "run.py", "gpu-day", "run", *chain(*options.items()), *arguments]
        environment = {**os.environ, "OUT": str(home), "PYTHONPATH": f"{ROOT}:{ROOT.parent}"}
        return subprocess.Popen(list(map(str, line)), env=environment, stdout=subprocess.PIPE, text=True)

    with command(homes[0], "--pack", tmp_path / "packed", "--part", 5) as process:
        for line in process.stdout:
            if json.loads(line).get("do") == "exported":
                break
        process.kill()
    with command(homes[1], "--part", 5, **{"--most": 0.4}) as process:
        lines, is_stopped = [], False
        for line in process.stdout:
            lines.append(json.loads(line))
            if lines[-1].get("do") == "exported" and not is_stopped:
                is_stopped = True
                process.send_signal(signal.SIGTERM)
    assert process.returncode == 0
    begun = next(line for line in lines if line.get("do") == "train")
    assert (begun["from"], lines[-2]["do"]) == ("checkpoint", "end")
    assert begun["step"] > 0
    assert lines[-2]["is_stopped"]
    # the export is larger than what one command may send: the next command sends the rest
    assert lines[-1]["missing"] > 0
    assert sum(path.stat().st_size for path in homes[1].rglob("*") if path.is_file()) <= 0.4 * MIB + len(lines) * 1000
    home = tmp_path / "home.gguf"
    with pytest.raises(InputFileError, match="no whole file"):
        gpu_day.collect(homes[1:2], home)
    with command(homes[2], "--part", 0) as process:
        assert json.loads(process.stdout.readlines()[-1])["missing"] == 0
    assert max(path.stat().st_size for path in homes[2].rglob("*.gguf.*")) <= 0.1 * MIB

    invoke("gpu-day", "collect", *homes[1:3], "--out", home)
    step = read_pretrained(home).progress.step
    assert step == read_pretrained(there / "gpu.gguf").progress.step >= begun["step"]
    assert home.read_bytes() == (there / "gpu.gguf").read_bytes()
    next(homes[2].rglob("*.gguf.*")).write_bytes(b"x")
    with pytest.raises(InputFileError, match="damaged"):
        gpu_day.collect(homes[1:3], home)
    source = tmp_path / "a.py"
    source.write_text("total = 1\nprint()\n")
    fill = [sys.executable, "-m", "dg_lsp", "fill", f"{source}:2:7", "--model", str(home)]
    done = subprocess.run(fill, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr  # 1: no candidate of a model that knows nothing is shown
    assert "tokens per step" in done.stdout

    # a new machine goes on from the file that came home
    new = tmp_path / "new"
    options = {"--root": new, "--pack": tmp_path / "packed", "--start": home, "--part": 0.02}
    with command(homes[3], "--continue", **options) as process:
        lines = [json.loads(line) for line in process.stdout]
    begun = next(line for line in lines if line.get("do") == "train")
    assert (begun["from"], begun["step"]) == (str(home), step)
    assert read_pretrained(new / "gpu.gguf").progress.step > step


def test_a_missing_dependency_is_named_in_one_line(monkeypatch, capsys):
    def fail():
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr(commands, "app", fail)
    assert command_line.main() == 2
    message = "training needs torch: in a clone, run pip install torch==2.13.0, then pip install -e . -e training\n"
    assert capsys.readouterr() == ("", message)


@pytest.mark.parametrize(
    ("device", "code", "message"),
    [
        ("cpu", 3, "none.gguf does not exist: check the path of the model\n"),
        ("cuda", 2, "torch finds no GPU: leave out --device\n"),
    ],
)
def test_an_error_is_one_line(monkeypatch, capsys, tmp_path, device, code, message):
    arguments = ["adapt", "none.gguf", "--root", str(tmp_path), "--out", str(tmp_path / "a.gguf"), "--device", device]
    monkeypatch.setattr(sys, "argv", ["dg_training", *arguments])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert command_line.main() == code
    assert capsys.readouterr() == ("", message)
