"""The language server with a scripted engine: `scripted_server.py SCENARIO`.

Environment: DG_TEST_STEPS is a file that gets one character per denoising step, the last one of the prompt's prefix;
DG_TEST_GATE is a FIFO: the model is loaded once the FIFO has been opened for writing. With DG_TEST_FOLLOWS the model
counts as one that follows instructions. DG_TEST_LANGUAGES are the languages that it knows, separated by commas. While
the file DG_TEST_HOLD exists, no step of the scenario `lines` begins. DG_TEST_LOG is a file that gets each message of
the client as a line. The model `reviser` knows all languages and writes `revised`; `nowhere` is missing.
"""

import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

sys.path.insert(1, str(Path(__file__).parents[1]))
from chatty import chatty
from scripted import MASK_SPEC, ScriptedDenoiser

from dg_lsp.engine.engine import Engine, LocalEngine
from dg_lsp.engine.request import FillResult, Timings
from dg_lsp.errors import BackendError, ModelError
from dg_lsp.postprocess.validate import Candidate
from dg_lsp.server.app import serve_client
from dg_lsp.server.protocol import Protocol
from dg_lsp.settings import CompletionSettings, Settings

SECRET = "never-in-a-log"
UNHURRIED = Settings(completion=CompletionSettings(early_stop_ms=0, deadline_ms=60_000, min_confidence=0.0))
"""Completions must not depend on how busy the machine is."""
LINES = ("def hello(name):", "def good_night(moon, stars):", "s = 'é😋' + str(3)")
NUMBERS = "_".join(map(str, range(100, 129)))
BLOCK = "# later\n# than you think\n# it is"
LONGEST_HOLD = 60.0


class EchoEngine(LocalEngine):
    """Returns the request as JSON."""

    def complete(self, request, *, deadline=None, costs=None):  # noqa: ARG002
        snapshot = request.snapshot
        seen = {
            "text": snapshot.text,
            "offset": request.offset,
            "language": snapshot.language,
            "settings": self.settings.deadline_ms,
            "extra": [[snippet.source, snippet.path, snippet.text] for snippet in request.snippets.chunks],
        }
        nothing = Timings(0.0, 0.0, 0.0, 0.0, 0.0)
        return FillResult("echo", (Candidate(json.dumps(seen), 0.0),), (), 0, 0, 0.0, 0, 0, nothing)
        yield


def open_echo(settings):
    denoiser = ScriptedDenoiser("")
    return EchoEngine(denoiser, denoiser.tokenizer, settings.completion)


class CountedDenoiser(ScriptedDenoiser):
    """Appends the last character of its prefix to a file at each step."""

    def __init__(self, fill, path, **script):
        super().__init__(fill, **script)
        self._path = Path(path)
        self._mark = b"?"

    def prefill(self, slot, prompt_ids, *most):
        prefix = self._parts(prompt_ids)[0]
        self._mark = prefix[-1:].encode() or b"?"
        return super().prefill(slot, prompt_ids, *most)

    def predict(self, *args):
        with self._path.open("ab") as steps:
            steps.write(self._mark)
        return super().predict(*args)


class HeldDenoiser(ScriptedDenoiser):
    """Begins no step while a file exists."""

    def __init__(self, fill, path):
        super().__init__(fill)
        self._path = Path(path)

    def predict(self, *args):
        end = time.monotonic() + LONGEST_HOLD
        while self._path.exists() and time.monotonic() < end:
            time.sleep(0.01)
        return super().predict(*args)


def known_line(prefix, suffix):
    """The rest of a known line, a block, or the rewritten line."""
    line = prefix[prefix.rfind("\n") + 1 :]
    if suffix.startswith("\n    return total"):
        return "total = 2 * a"
    if not line and prefix.endswith("# It is:\n"):
        return BLOCK
    return next((known[len(line) :] for known in LINES if line.strip() and known.startswith(line)), "")


def slow_fill(prefix, suffix):
    """A completion of 64 steps, more than six seconds, after `s`, and of four elsewhere."""
    return NUMBERS if prefix.endswith("s") else "ast"


def failing(error):
    denoiser = ScriptedDenoiser("x")
    denoiser.predict = Mock(side_effect=error)
    return denoiser


def open_engine(settings: Settings, scenario: str = "", environment: Mapping[str, str] = os.environ) -> Engine:
    """The engine of a scenario, by default that of the command line."""
    scenario = scenario or sys.argv[1]
    if gate := environment.get("DG_TEST_GATE"):
        Path(gate).read_bytes()
    if scenario == "missing" or Path(settings.model.name).name == "nowhere":
        raise ModelError("no model named 'nowhere'; try dg-mini")
    if scenario == "crash":
        raise RuntimeError(SECRET)
    if scenario == "echo":
        return open_echo(settings)
    if Path(settings.model.name).name == "reviser":
        denoiser = ScriptedDenoiser("revised", spec=replace(MASK_SPEC, name="reviser"))
        return LocalEngine(denoiser, denoiser.tokenizer, settings.completion)
    denoisers = {
        "fill": lambda: ScriptedDenoiser(environment.get("DG_TEST_FILL", "return total")),
        "file": lambda: ScriptedDenoiser(lambda *_: Path(environment["DG_TEST_FILL"]).read_text()),
        "count": lambda: ScriptedDenoiser(lambda prefix, _: f"total({prefix.count('+')})"),
        "three": lambda: ScriptedDenoiser(("first", "second", "third")),
        "slow": lambda: CountedDenoiser(slow_fill, environment["DG_TEST_STEPS"], step_seconds=0.1, tokens_per_step=1),
        "lines": lambda: HeldDenoiser(known_line, environment["DG_TEST_HOLD"]),
        "edits": lambda: chatty("```python\n" + environment["DG_TEST_FILL"]),
        "backend-error": lambda: failing(BackendError("the graph failed; lower gpu_layers")),
        "bug": lambda: failing(ValueError(SECRET)),
    }
    denoiser = denoisers[scenario]()
    if languages := environment.get("DG_TEST_LANGUAGES"):
        denoiser.spec = replace(denoiser.spec, languages=tuple(languages.split(",")))
    engine = LocalEngine(denoiser, denoiser.tokenizer, settings.completion)
    if "DG_TEST_FOLLOWS" in environment:
        engine.spec = replace(engine.spec, template="gemma4")
    return engine


def log_messages(path):
    receive = Protocol.receive

    def logged(self, body):
        with path.open("a") as log:
            print(json.dumps(json.loads(body)), file=log)
        receive(self, body)

    Protocol.receive = logged


if __name__ == "__main__":
    if log := os.environ.get("DG_TEST_LOG"):
        log_messages(Path(log))
    sys.exit(serve_client(open_engine, UNHURRIED))
