"""A run on a machine that is lent for minutes: packed, cut off, continued, brought home, and a file that fills."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_causal import write
from typer.testing import CliRunner

import dg_training.__main__ as command_line
from dg_lsp.errors import InputFileError
from dg_training import gpu_day, train
from dg_training.adapt import AdaptOptions, adapt
from dg_training.documents import DocumentStream
from dg_training.export import training_progress
from dg_training.rows import RowConfig
from dg_training.store import read_texts, write_texts
from dg_training.tokenizer import PREFIX
from dg_training.transfer import by_use, join_file, pack_run, split_file, unpack_run

from .conftest import corpus_files, toy_source

MIB = 2**20
ROOT = Path(__file__).parents[1]
ROWS = RowConfig(num_rows=4, num_clean=96, num_noisy=64, max_middle=24, canvas_lengths=(8,), canvas_shares=(1.0,))
OPTIONS = AdaptOptions(minutes=0.5, num_tokens=640, learning_rate=2e-3, file_type="F32", rows=ROWS)


@pytest.fixture(scope="module")
def corpus(toy, sample_files, tmp_path_factory):
    """A work folder as `data` leaves it, before the tokens."""
    root = tmp_path_factory.mktemp("corpus")
    toy.tokenizer.save(str(root / "tokenizer.json"))
    packages = sorted({file.package for file in sample_files})
    few = [file for file in sample_files if len(file.text) < 12_000]
    write_texts(root / "train.jsonl.xz", [file for file in few if file.package in packages[1:]][:90])
    write_texts(root / "val.jsonl.xz", [file for file in few if file.package == packages[0]][:10])
    return root


def test_a_packed_run_is_unpacked_once_all_slices_have_come(corpus, tmp_path):
    model = tmp_path / "model.gguf"
    model.write_bytes(bytes(200_000))
    packed, there = tmp_path / "packed", tmp_path / "there"
    assert pack_run(corpus, packed, 100_000, model) == []
    slices = sorted(packed.glob("run.tar.*"))
    first = tmp_path / "first"
    first.mkdir()
    slices[0].rename(first / slices[0].name)
    assert not unpack_run([packed], there)
    assert unpack_run([first], there)
    assert (there / "start.gguf").read_bytes() == model.read_bytes()
    for name in ("train.jsonl.xz", "val.jsonl.xz"):
        assert read_texts(there / name) == read_texts(corpus / name)


def test_a_limit_leaves_out_the_packages_that_others_use_least(corpus, tmp_path):
    order = by_use(read_texts(corpus / "train.jsonl.xz"))
    most = sum(len(file.text.encode()) for file in read_texts(corpus / "train.jsonl.xz") if file.package == order[0])
    assert pack_run(corpus, tmp_path / "packed", MIB, text_bytes=most) == sorted(order[1:])
    assert unpack_run([tmp_path / "packed"], tmp_path / "there")
    assert {file.package for file in read_texts(tmp_path / "there" / "train.jsonl.xz")} == {order[0]}


def test_a_model_file_that_comes_home_in_slices_is_whole_or_refused(tmp_path):
    path = tmp_path / "a.gguf"
    path.write_bytes(bytes(range(256)) * 40)
    split_file(path, tmp_path / "export-1", 4000, {"steps": 7})
    slices = sorted((tmp_path / "export-1").glob("a.gguf.*"))
    assert [one.stat().st_size for one in slices] == [4000, 4000, 2240]
    facts, content = join_file([tmp_path / "export-1"])
    assert (facts["steps"], content) == (7, path.read_bytes())
    slices[1].write_bytes(b"x" * 4000)
    with pytest.raises(InputFileError, match="damaged"):
        join_file([tmp_path / "export-1"])


def test_a_suffix_has_up_to_a_third_of_the_prompt(toy):
    files = corpus_files([toy_source(seed, 400) for seed in range(4)])
    stream, shares = DocumentStream(files, toy.tokenizer, 300, 32, 1), []
    for _ in range(300):
        document = stream.infill_document()
        suffix = document.ids.tolist().index(PREFIX) - 1
        if document.middle > 200:
            shares.append(suffix / (document.middle - 3))
    # a prefix of whole lines may be shorter than its room
    assert 0.28 < np.quantile(shares, 0.95) < 0.36
    assert np.quantile(shares, 0.05) < 0.05


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


WITH_TORCH = ("torch", "functorch", "sympy", "mpmath", "jinja2", "networkx", "fsspec", "filelock", "typing_extensions")


@pytest.fixture
def carried(tmp_path):
    """A folder of packages with torch and the wheels that are carried, and no others."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    names = {*WITH_TORCH, "torchgen", "markupsafe", "_yaml", "attr", "cattr", *command_line.WHEELS.values()}
    for path in Path(torch.__file__).parents[1].iterdir():
        if path.name.split(".")[0] in names:
            (folder / path.name).symlink_to(path)
    return folder


def invoke(*arguments):
    done = CliRunner().invoke(command_line.app, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    return done.output


def test_a_run_that_is_cut_off_goes_on_and_its_file_fills(corpus, toy, tmp_path, carried, monkeypatch):
    write(tmp_path / "tiny", "llama", toy.texts[:50])
    first = tmp_path / "first.gguf"
    adapt(tmp_path / "tiny", corpus, first, replace(OPTIONS, max_steps=0), lambda _: None)
    output = invoke("gpu-day", "pack", "--root", corpus, "--to", tmp_path / "packed", "--start", first, "--size", 8)
    assert "tokenizers==" in output
    (tmp_path / "run.py").write_text(RUN)
    there, homes = tmp_path / "there", [tmp_path / f"home-{i}" for i in range(4)]

    def command(home, *more, **limits):
        options = {"--root": there, "--every": 0.01, "--minutes": 0.5, "--size": 0.1, "--format": "F32", **limits}
        line = [sys.executable, "-S", tmp_path / "run.py", "gpu-day", "run", *chain(*options.items()), *more]
        environment = {**os.environ, "OUT": str(home), "PYTHONPATH": f"{ROOT}:{ROOT.parent}:{carried}"}
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

    invoke("gpu-day", "collect", *homes[1:3], "--out", home, "--entry", tmp_path / "entry.md", "--title", "a title")
    assert (tmp_path / "entry.md").read_text().startswith("## a title · ")
    step = training_progress(home)[0]
    assert step == training_progress(there / "gpu.gguf")[0] >= begun["step"]
    source = tmp_path / "a.py"
    source.write_text("total = 1\nprint()\n")
    fill = [sys.executable, "-m", "dg_lsp", "fill", f"{source}:2:7", "--model", str(home)]
    done = subprocess.run(fill, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr  # 1: no candidate of a model that knows nothing is shown
    assert "tokens per step" in done.stdout

    # a new machine goes on from the file that came home
    monkeypatch.setattr(train, "VALIDATION_TOKENS", 1)
    new, parcel = tmp_path / "new", gpu_day.Parcel(homes[3], MIB)
    options = replace(OPTIONS, checkpoint_minutes=0.01)
    given = {"part_minutes": 0.02, "start": home, "is_continued": True}
    gpu_day.run(new, [tmp_path / "packed"], parcel, options, **given)
    lines = [json.loads(line) for line in (homes[3] / "log.jsonl").read_text().splitlines()]
    begun = next(line for line in lines if line.get("do") == "train")
    assert (begun["from"], begun["step"]) == (str(home), step)
    assert training_progress(new / "gpu.gguf")[0] > step


def test_a_missing_wheel_is_named_before_anything_starts(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["dg_training", "gpu-day", "run"])
    monkeypatch.setitem(command_line.WHEELS, "tokens-of-nothing", "tokens_of_nothing")
    assert command_line.main() == 2
    assert capsys.readouterr().err == "`gpu-day run` needs the wheels tokens-of-nothing\n"
