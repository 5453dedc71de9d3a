"""Engines over scripted models, and requests at a `|`."""

import pytest

from dg_lsp.backends.scripted import ScriptedDenoiser
from dg_lsp.context.snapshot import Snapshot
from dg_lsp.engine.engine import Engine
from dg_lsp.engine.request import FillRequest
from dg_lsp.settings import FillSettings

UNHURRIED = FillSettings(deadline_ms=60_000, patience_ms=0)
"""Results must not depend on how busy the machine is."""


@pytest.fixture
def engine_of():
    """(engine, denoiser) of a script."""

    def make(fill, settings=None, **script):
        denoiser = ScriptedDenoiser(fill, **script)
        return Engine(denoiser, denoiser.tokenizer, settings or UNHURRIED), denoiser

    return make


@pytest.fixture
def ask():
    """A request at the `|` in the text."""

    def make(text, **more):
        offset = text.index("|")
        return FillRequest(Snapshot("file:///a.py", 1, text.replace("|", "", 1)), offset, **more)

    return make


@pytest.fixture
def frames_of():
    """(frames, result)."""

    def collect(engine, request, **more):
        steps, frames = engine.frames(request, **more), []
        while True:
            try:
                frames.append(next(steps))
            except StopIteration as end:
                return frames, end.value

    return collect
