"""Runs the command line in this process, with a scripted model unless a test uses the bundled one."""

import io
import json
import re
import shutil
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import hub_server
import pytest
from huggingface_hub import constants
from scripted import MASK_SPEC, ScriptedDenoiser

from dg_lsp.canvas.spec import ModelSpec
from dg_lsp.cli import bench, loading, run
from dg_lsp.engine.engine import LocalEngine
from dg_lsp.models import gpus, registry
from dg_lsp.settings import Settings


@dataclass(frozen=True, slots=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)

    @property
    def facts(self):
        """The values of an output in two columns, by their names."""
        return dict(re.findall(r"^(\S+(?: \S+)*)  +(.*)$", self.out, re.MULTILINE))

    def error(self, code):
        """The message of a command that printed one line on standard error, and nothing else."""
        assert (self.code, self.out) == (code, ""), self
        assert re.fullmatch(r"dg-lsp: .+\n", self.err), self.err
        return self.err.removeprefix("dg-lsp: ").rstrip("\n")


@dataclass(slots=True)
class Script:
    """What the commands find as their model, and what they did with it."""

    fill: str | Callable[[str, str], str] | tuple[str, ...] = "fill"
    spec: ModelSpec = MASK_SPEC
    model: ScriptedDenoiser | None = None  # in place of one with this fill and spec
    settings: Settings | None = None  # that it was opened with
    denoiser: ScriptedDenoiser | None = None  # that was opened


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    """Without a settings file above, a daemon, data and GPUs of the developer, or colours set by the environment."""
    monkeypatch.setattr(gpus, "find_gpus", tuple)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DG_LSP_DAEMON_DIR", str(tmp_path / "no-daemon"))
    monkeypatch.setenv("DG_LSP_DATA_DIR", str(tmp_path / "data"))
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def without_trials(monkeypatch):
    """New model files are opened without a trial in a child process, which test_trial.py tests."""
    monkeypatch.setattr(loading, "tested", lambda path, _settings: nullcontext(path))


@pytest.fixture
def script(monkeypatch):
    held = Script()

    def open_engine(settings):
        held.settings = settings
        held.denoiser = held.model or ScriptedDenoiser(held.fill, spec=held.spec)
        return LocalEngine(held.denoiser, held.denoiser.tokenizer, settings.completion)

    monkeypatch.setattr(loading, "open_engine", open_engine)
    return held


@pytest.fixture
def bench_model(script, monkeypatch, tmp_path):
    """The scripted model with a file of weights, for benchmarks."""
    (tmp_path / "weights").write_bytes(b"0")
    loaded = loading.LoadedModel(tmp_path / "weights", None, MASK_SPEC, threads=1)
    monkeypatch.setattr(bench, "open_model", lambda settings: (loading.open_engine(settings), loaded))
    return script


@pytest.fixture
def terminal(monkeypatch):
    """`terminal(text)`: the user types this on a terminal."""

    def use(text=""):
        stdin = io.StringIO(text)
        stdin.isatty = lambda: True
        monkeypatch.setattr(sys, "stdin", stdin)

    return use


@pytest.fixture
def data(tmp_path):
    """A file with test cases in the working directory."""
    shutil.copy(Path(__file__).parents[1] / "bench/problems.jsonl", tmp_path)
    return "problems.jsonl"


@pytest.fixture
def position(tmp_path):
    """The end of a line that the bundled models complete."""
    (tmp_path / "a.py").write_text("def area(width, height):\n    return width * \n")
    return "a.py:2"


@pytest.fixture
def hub(request, monkeypatch):
    """A hub with the `FILES` of the test's module, whose `TINY` is the only preset."""
    module = request.module
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 100_000)
    monkeypatch.setattr(registry, "PRESETS", (module.TINY,))
    with hub_server.serving(module.TINY.repository, dict(module.FILES)) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
        yield server


@pytest.fixture
def dg_lsp(capsys):
    """`dg_lsp("fill", "a.py:1")` -> Outcome."""

    def call(*arguments):
        code = run([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return call
