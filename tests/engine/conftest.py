"""Engines and schedulers over models without weights."""

import numpy as np
import pytest
from gates import LONG, TIMEOUT, Gate
from scripted import END_ID, ByteTokenizer, ScriptedDenoiser

from dg_lsp.canvas.layout import common_prefix_length
from dg_lsp.context.document import Snapshot
from dg_lsp.diffusion.denoiser import Footprint, Prediction
from dg_lsp.engine.engine import LocalEngine, drain
from dg_lsp.engine.request import FillRequest
from dg_lsp.engine.scheduler import Scheduler
from dg_lsp.settings import CompletionSettings, ModelSettings, Settings

NO_HURRY = CompletionSettings(deadline_ms=60_000, early_stop_ms=0)
"""Results do not depend on the load of the machine."""


@pytest.fixture
def engine_of():
    """(engine, denoiser) of a script."""

    def make(fill, settings=NO_HURRY, **script):
        denoiser = ScriptedDenoiser(fill, **script)
        return LocalEngine(denoiser, denoiser.tokenizer, settings), denoiser

    return make


@pytest.fixture
def ask():
    """A request at the `|` in the text."""

    def make(text, language="python", **options):
        offset = text.index("|")
        return FillRequest(Snapshot("file:///a.py", text.replace("|", "", 1), language), offset, **options)

    return make


@pytest.fixture
def frames_of():
    """(frames, result)."""

    def collect(engine, request):
        frames = []
        steps = request.run(engine, float("inf"))
        return frames, drain(steps, lambda step: frames.append(engine.frame(step)) if len(step.ids) else None)

    return collect


class Reciter:
    """A model that predicts at each position what stands there in one text, whatever it sees.

    `start` tokens precede the text: the first canvas after a prompt of so many tokens begins with the text. None takes
    the length of the first prompt.
    """

    num_slots = 2
    footprint = Footprint()

    def __init__(self, text, spec, start=0, confidence=0.99):
        self.spec = spec
        self.tokenizer = ByteTokenizer()
        self.calls = []
        self._ids, self._start, self._confidence = self.tokenizer.encode(text), start, confidence
        self._held = {}

    def prefill(self, slot, prompt_ids, _most=0):
        self._start = len(prompt_ids) if self._start is None else self._start
        held = self._held.get(slot, prompt_ids[:0])
        self._held[slot] = prompt_ids
        self.calls.append(("prefill", len(prompt_ids), ()))
        return len(prompt_ids) - common_prefix_length(held, prompt_ids)

    def predict(self, slot, canvases, _temperature, _rng, lanes=(), *_):
        self.calls.append(("predict", [canvas.tolist() for canvas in canvases], tuple(lanes)))
        at = len(self._held[slot]) - self._start
        return [self._prediction(at, canvas) for canvas in canvases]

    def extend(self, slot, ids, _allowed=None):
        self._held[slot] = np.concatenate([self._held[slot], ids])
        self.calls.append(("extend", ids.tolist(), ()))
        return self._prediction(len(self._held[slot]) - self._start - len(ids) + 1, ids)

    def _prediction(self, at, canvas):
        ids = np.full(len(canvas), END_ID, np.int32)
        known = self._ids[max(0, at) :][: len(canvas)]
        ids[: len(known)] = known
        confidence = np.full(len(canvas), self._confidence, np.float32)
        return Prediction(ids, ids, confidence, np.full(len(canvas), 0.001, np.float32), confidence)

    def close(self):
        pass

    @property
    def passes(self):
        """The canvases of every pass."""
        return [canvases for kind, canvases, _ in self.calls if kind == "predict"]


@pytest.fixture
def reciting():
    """(engine, denoiser) of a text that the model predicts everywhere."""

    def make(text, spec, settings=None, **options):
        denoiser = Reciter(text, spec, **options)
        return LocalEngine(denoiser, denoiser.tokenizer, settings or NO_HURRY), denoiser

    return make


@pytest.fixture
def scheduler_of():
    """A scheduler over a denoiser; `before` runs each time the model is opened."""
    schedulers = []

    def make(denoiser, settings=LONG, before=lambda: None, idle_seconds=0.0, engine=LocalEngine):
        def open_engine(_settings):
            before()
            return engine(denoiser, denoiser.tokenizer, settings)

        model = ModelSettings(idle_seconds=idle_seconds)
        schedulers.append(Scheduler(open_engine, Settings(model=model, completion=settings)))
        return schedulers[-1]

    yield make
    for scheduler in schedulers:
        scheduler.close()


@pytest.fixture
def busy(scheduler_of):
    """(scheduler, denoiser, future) of a request that is inside its first step until `denoiser.go_on` is set."""

    def make(fill, request, **script):
        denoiser = Gate(fill, tokens_per_step=1, **script)
        scheduler = scheduler_of(denoiser)
        future = scheduler.submit(request)
        assert denoiser.is_inside.wait(TIMEOUT)
        return scheduler, denoiser, future

    return make
