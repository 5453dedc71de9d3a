"""A run on a machine that is lent for minutes: packed, cut off, continued, brought home, and a file that fills."""

import json
import os
import pickle
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import dg_lsp
import dg_training.__main__ as command_line
from dg_lsp.bench.dataset import TestCase
from dg_lsp.canvas.fim import fim_layout
from dg_lsp.canvas.spec import FimTokens, ModelSpec
from dg_lsp.context.snippets import Snippet, Snippets, SnippetSource
from dg_lsp.context.window import Prompt
from dg_lsp.errors import InputFileError
from dg_lsp.gguf import read_header
from dg_training import gpu_day, train
from dg_training.documents import DocumentStream
from dg_training.evaluate import write_cases
from dg_training.export import training_progress, write_model
from dg_training.network import DiffusionNetwork
from dg_training.store import CorpusFile, Neighbours, read_texts, write_texts
from dg_training.tokenizer import END_OF_MIDDLE, MIDDLE, PREFIX, SUFFIX, tokenizer_from_gguf
from dg_training.transfer import by_use, join_model, pack_corpus, split_model, unpack_corpus

from .conftest import corpus_files, toy_source

MIB = 2**20
ROOT = Path(__file__).parents[1]
MINI = train.CONFIGS["mini"]


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


def test_parts_are_of_use_alone_and_together_the_corpus(corpus, tmp_path):
    files = read_texts(corpus / "train.jsonl.xz")
    (whole,), left_out = pack_corpus(corpus, tmp_path / "whole", 60 * MIB, num_processes=1)
    assert not left_out
    assert whole.packages == tuple(by_use(files))
    limit = whole.num_bytes - 100
    parts, left_out = pack_corpus(corpus, tmp_path / "parts", limit, num_processes=1)
    assert len(parts) > 1
    assert not left_out
    assert max(part.path.stat().st_size for part in parts) <= limit
    assert parts[0].packages[0] == whole.packages[0]
    root = tmp_path / "there"
    assert unpack_corpus([parts[0].path], root)
    assert {file.package for file in read_texts(root / "train.jsonl.xz")} == set(parts[0].packages)
    assert (root / "val.jsonl.xz").read_bytes() == (corpus / "val.jsonl.xz").read_bytes()
    assert unpack_corpus([part.path for part in parts], root)
    assert not unpack_corpus([part.path for part in parts], root)
    assert sorted(read_texts(root / "train.jsonl.xz"), key=str) == sorted(files, key=str)


def test_a_limit_leaves_whole_packages_out(corpus, tmp_path):
    (whole,), _ = pack_corpus(corpus, tmp_path / "whole", 60 * MIB, num_processes=1)
    (few,), left_out = pack_corpus(corpus, tmp_path / "few", 60 * MIB, whole.num_bytes - 100, num_processes=1)
    assert few.num_bytes < whole.num_bytes
    assert left_out
    assert {*few.packages, *left_out} == set(whole.packages)
    assert unpack_corpus([few.path], tmp_path / "root")
    with pytest.raises(InputFileError, match="another corpus"):
        unpack_corpus([whole.path], tmp_path / "root")
    with pytest.raises(InputFileError, match="no package fits"):
        pack_corpus(corpus, tmp_path / "none", MIB // 64, num_processes=1)


@pytest.mark.parametrize("damage", ["cut", "changed"])
def test_a_damaged_part_is_refused(corpus, tmp_path, damage):
    part = pack_corpus(corpus, tmp_path, 60 * MIB, num_processes=1)[0][0].path
    raw = bytearray(part.read_bytes())
    raw[len(raw) // 2] ^= 255
    part.write_bytes(raw[: len(raw) // 2] if damage == "cut" else raw)
    with pytest.raises(InputFileError, match=r"corpus-1\.tar is"):
        unpack_corpus([part], tmp_path / "root")
    assert not (tmp_path / "root" / "train.jsonl.xz").exists()


def test_a_model_file_that_comes_home_in_slices_is_whole_or_refused(tmp_path):
    path = tmp_path / "a.gguf"
    path.write_bytes(bytes(range(256)) * 40)
    split_model(path, tmp_path / "export-1", 4000, {"steps": 7})
    slices = sorted((tmp_path / "export-1").glob("a.gguf.*"))
    assert [one.stat().st_size for one in slices] == [4000, 4000, 2240]
    facts, content = join_model(tmp_path / "export-1")
    assert (facts["steps"], content) == (7, path.read_bytes())
    slices[1].write_bytes(b"x" * 4000)
    with pytest.raises(InputFileError, match="damaged"):
        join_model(tmp_path / "export-1")


CORE = '''class Job:
    """One job."""

    def start(self, name):
        return name


def run(job, speed=1):
    return job.start(speed)
'''
WORK = "def work_{i}(total, count):\n    job = Job()\n    return run(job, total + {i})\n\n\n"
PACKAGE = {
    "tool/__init__.py": "from .core import run\n",
    "tool/core.py": CORE,
    "tool/app.py": "import os\nfrom tool.core import Job, run\n\n\n" + "".join(WORK.format(i=i) for i in range(30)),
}


def test_the_context_of_a_row_is_what_a_prompt_of_the_product_shows(toy):
    files = [CorpusFile("tool", path, text) for path, text in PACKAGE.items()]
    own, imported = Neighbours(files).chunks(files[2])
    assert own == "# tool/app.py\n"
    assert imported.startswith("# tool/core.py\nclass Job:\n")
    assert "def run(job, speed=1): ...\n" in imported
    max_prompt = 600
    stream = DocumentStream(files, toy.tokenizer, max_prompt, 64, 3, context_share=0.5)
    spec = ModelSpec("mini", 512, None, (END_OF_MIDDLE,), fim=FimTokens(PREFIX, SUFFIX, MIDDLE))
    shown = 0
    for _ in range(400):
        document = stream.infill_document()
        ids = document.ids.tolist()
        at = ids.index(PREFIX)
        before = toy.tokenizer.decode(ids[at + 1 : document.middle - 1], skip_special_tokens=False)
        if not before.startswith("# tool/core.py\n"):
            continue
        head, _, prefix = before.partition("# tool/app.py\n")
        chunk = Snippet(SnippetSource.IMPORTS, "tool/core.py", head.partition("\n")[2])
        if not any(f"\n{prefix}" in file.text for file in files):
            continue  # its first token is the rest of a longer one
        suffix = toy.tokenizer.decode(ids[1:at])
        prompt = Prompt(prefix, suffix, path="tool/app.py", language="python", snippets=Snippets((chunk,)))
        layout = fim_layout(prompt, _Ids(toy.tokenizer), spec, 4 * max_prompt)
        assert layout.prompt_ids.tolist() == ids[: document.middle]
        shown += 1
    assert shown > 10


class _Ids:
    """The tokenizer of the training as one of the product."""

    def __init__(self, tokenizer):
        self._tokenizer = tokenizer

    def encode(self, text):
        return np.array(self._tokenizer.encode(text, add_special_tokens=False).ids, np.int32)


def test_the_configuration_of_a_gpu_is_the_stated_recipe(tmp_path):
    rows = MINI.rows
    assert rows.max_prompt + 3 == 1023
    assert sum(p for n, p in zip(rows.canvas_lengths, rows.canvas_shares, strict=True) if n <= 16) >= 0.75
    assert sum(rows.canvas_shares) == pytest.approx(1)
    assert rows.context_share == 0.2
    assert (rows.num_clean + rows.num_noisy) % 128 == 0  # blocks of FlexAttention
    network = DiffusionNetwork(MINI.network)
    assert 30e6 <= sum(weight.numel() for weight in network.parameters()) <= 40e6
    tokenizer = tokenizer_from_gguf(Path(dg_lsp.__file__).parent / "models" / "dg-mini.gguf")
    write_model(tmp_path / "random.gguf", network, tokenizer, MINI.metadata(0))
    assert (tmp_path / "random.gguf").stat().st_size <= 40e6
    assert read_header(tmp_path / "random.gguf").values["dg.snippets"].read() is True
    optimizers = train.build_optimizers(network, MINI.optimizer)
    assert isinstance(optimizers[0], torch.optim.Muon)
    assert 0 < MINI.optimizer.ema_decay < 1


def test_the_first_half_of_a_run_is_mostly_causal(toy, work_folder):
    shares = {"causal_share": MINI.causal_share, "causal_until": MINI.causal_until}
    trainer, kinds = train.Trainer(work_folder, replace(toy.config, **shares)), []
    for trainer.progress.step in range(100):
        kinds.append(trainer.is_causal(0.45))
    assert sum(kinds) == 80
    assert not trainer.is_causal(0.5)


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


def test_the_expected_speed_follows_from_operations_and_utilisation():
    fast, slow = (gpu_day.expected_speed(MINI, 989e12, share) for share in (0.3, 0.15))
    assert fast == pytest.approx(2 * slow)
    weights = sum(weight.numel() for weight in DiffusionNetwork(MINI.network).parameters())
    assert 6 * weights < gpu_day.flop_per_token(MINI, is_causal=True) < 8 * weights
    assert 10 * weights < gpu_day.flop_per_token(MINI, is_causal=False) < 13 * weights


RUN = """
import pickle, sys
from dg_training import train
import dg_training.__main__ as command_line
train.CONFIGS["mini"] = pickle.load(open(sys.argv[1], "rb"))
train.VALIDATION_TOKENS, train.REPORT_STEPS = 1, 2
import torch
torch.set_num_threads(1)
del sys.argv[1]
sys.exit(command_line.main())
"""


WITH_TORCH = ("torch", "functorch", "sympy", "mpmath", "jinja2", "networkx", "fsspec", "filelock", "typing_extensions")


@pytest.fixture
def carried(tmp_path):
    """A folder of packages with torch and the wheels that are carried, and no others."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    names = {*WITH_TORCH, "torchgen", "markupsafe", "_yaml", *command_line.WHEELS.values()}
    for path in Path(torch.__file__).parents[1].iterdir():
        if path.name.split(".")[0] in names:
            (folder / path.name).symlink_to(path)
    return folder


def invoke(*arguments):
    done = CliRunner().invoke(command_line.app, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    return done.output


def test_a_run_that_is_cut_off_goes_on_and_its_file_fills(toy, corpus, tmp_path, carried, monkeypatch):
    config = replace(toy.config, name="mini", minutes=0.5, checkpoint_minutes=0.01)
    monkeypatch.setitem(train.CONFIGS, "mini", config)
    output = invoke("gpu-day", "pack", "--root", corpus, "--to", tmp_path / "parts", "--size", 8)
    assert "tokenizers==" in output
    assert "clean tokens/s" in output
    (tmp_path / "config.pickle").write_bytes(pickle.dumps(config))
    (tmp_path / "run.py").write_text(RUN)
    there, homes = tmp_path / "there", [tmp_path / f"home-{i}" for i in range(3)]

    def command(home, *more):
        options = ["--root", there, "--every", 0.01, "--minutes", 0.5, "--size", 0.02, *more]
        line = [sys.executable, "-S", tmp_path / "run.py", tmp_path / "config.pickle", "gpu-day", "run", *options]
        environment = {**os.environ, "OUT": str(home), "PYTHONPATH": f"{ROOT}:{ROOT.parent}:{carried}"}
        return subprocess.Popen(list(map(str, line)), env=environment, stdout=subprocess.PIPE, text=True)

    with command(homes[0], "--corpus", tmp_path / "parts" / "corpus-1.tar", "--part", 5) as first:
        for line in first.stdout:
            if json.loads(line).get("do") == "exported":
                break
        first.kill()
    facts, _ = join_model(next(homes[0].glob("export-*")))
    assert facts["steps"] > 0
    with command(homes[1], "--part", 5) as second:
        lines, is_stopped = [], False
        for line in second.stdout:
            lines.append(json.loads(line))
            if lines[-1].get("do") == "exported" and not is_stopped:
                is_stopped = True
                second.send_signal(signal.SIGTERM)
    assert second.returncode == 0
    begun = next(line for line in lines if line.get("do") == "train")
    assert begun["from"] == "checkpoint"
    assert begun["step"] >= facts["steps"]
    assert lines[-1]["do"] == "end"
    assert lines[-1]["is_stopped"]
    home, model = homes[1], there / "runs" / "mini-q8_0.gguf"
    assert [one.name for one in home.iterdir() if one.is_dir()] == [f"export-{training_progress(model)[0]:07}"]
    assert max(one.stat().st_size for one in home.rglob("*.gguf.*")) <= 0.02 * MIB

    cases, filled = tmp_path / "cases.jsonl.gz", tmp_path / "home.gguf"
    write_cases(cases, [TestCase("a", "line-end", "total = count\nvalue = ", "\n", "total")])
    names = ["--out", filled, "--entry", tmp_path / "entry.md", "--cases", cases]
    invoke("gpu-day", "collect", *homes[:2], "--root", there, *names, "--title", "2026-01-01 · a title")
    entry = (tmp_path / "entry.md").read_text()
    assert entry.startswith("## 2026-01-01 · a title · ")
    assert "line-end.causal" in entry
    assert "| 0.0% |" in entry
    source = tmp_path / "a.py"
    source.write_text("total = 1\nprint()\n")
    fill = [sys.executable, "-m", "dg_lsp", "fill", f"{source}:2:7", "--model", str(filled)]
    done = subprocess.run(fill, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr  # 1: no candidate of a model that knows nothing is shown
    assert "tokens per step" in done.stdout

    # a new machine goes on from the file that came home
    new, corpus_part = tmp_path / "new", tmp_path / "parts" / "corpus-1.tar"
    monkeypatch.setattr(train, "VALIDATION_TOKENS", 1)
    options = {"part_minutes": 0.02, "part_bytes": MIB, "start": filled}
    gpu_day.run(new, config, [corpus_part], homes[2], **options)
    lines = [json.loads(line) for line in (homes[2] / "log.jsonl").read_text().splitlines()]
    begun = next(line for line in lines if line.get("do") == "train")
    assert (begun["from"], begun["step"]) == (str(filled), training_progress(filled)[0])
    assert training_progress(new / "runs" / "mini-q8_0.gguf")[0] > begun["step"] > 0


def test_a_missing_wheel_is_named_before_anything_starts(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["dg_training", "gpu-day", "run"])
    monkeypatch.setitem(command_line.WHEELS, "tokens-of-nothing", "tokens_of_nothing")
    assert command_line.main() == 2
    assert capsys.readouterr().err == "`gpu-day run` needs the wheels tokens-of-nothing\n"


def test_batches_come_from_loader_processes_without_a_network(toy):
    assert gpu_day.loader_speed(toy.root, toy.config.rows, 0, 0.05) > 0
