"""Engines and schedulers over models without weights."""

from contextlib import ExitStack, closing

import pytest
from gates import LONG, TIMEOUT, Gate
from scripted import ScriptedDenoiser, engine_for

from dg_lsp.context.document import Snapshot
from dg_lsp.engine.engine import LocalEngine, drain
from dg_lsp.engine.request import FillRequest
from dg_lsp.engine.scheduler import Scheduler
from dg_lsp.settings import ModelSettings, Settings


@pytest.fixture
def engine_of():
    """(engine, denoiser) of a script, with these settings; results do not depend on the load of the machine."""

    def make(fill, changes=None, **script):
        denoiser = ScriptedDenoiser(fill, **script)
        return engine_for(denoiser, **{"deadline_ms": 60_000, "early_stop_ms": 0, **(changes or {})}), denoiser

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
        return frames, drain(steps, lambda step: frames.append(step.frame()) if len(step.ids) else None)

    return collect


@pytest.fixture
def scheduler_of():
    """A scheduler over a denoiser; `before` runs each time the model is opened."""

    def make(denoiser, settings=LONG, before=lambda: None, idle_seconds=0.0, engine=LocalEngine):
        def open_engine(_settings):
            before()
            return engine(denoiser, denoiser.tokenizer, settings)

        model = ModelSettings(idle_seconds=idle_seconds)
        return stack.enter_context(closing(Scheduler(open_engine, Settings(model=model, completion=settings))))

    with ExitStack() as stack:
        yield make


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
