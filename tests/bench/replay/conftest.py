"""A typing model, an editor and a denoiser whose times are whole ticks, so that sessions can be checked by hand.

One tick is 1/64 s: sums of ticks are exact in binary.
"""

from dataclasses import replace

import pytest

from dg_lsp.backends.scripted import ScriptedDenoiser
from dg_lsp.bench.replay.session import EngineCompleter, Replay
from dg_lsp.bench.replay.summary import ReplaySummary
from dg_lsp.bench.replay.typing_model import EditorModel, MatchingKey, TypingModel
from dg_lsp.bench.replay.typing_tasks import TypingTask
from dg_lsp.engine.engine import LocalEngine
from dg_lsp.engine.request import DecoderName
from dg_lsp.settings import CompletionSettings

TICK = 1000 / 64
KEY, DEBOUNCE, REACTION = 8, 4, 12
"""Ticks before each key, from a key to its request, and from an item to its acceptance."""
TYPING = TypingModel(KEY * TICK, KEY * TICK, KEY * TICK, spread=0, reaction_ms=REACTION * TICK)


class Clock:
    """Advances with the steps of the model only."""

    def __init__(self):
        self.ticks = 0

    def __call__(self):
        return self.ticks / 64


class TickingDenoiser(ScriptedDenoiser):
    """A step takes one tick, a prefill none."""

    def __init__(self, fill, clock, **script):
        super().__init__(fill, **script)
        self._clock = clock

    def predict(self, *args, **kwargs):
        self._clock.ticks += 1
        return super().predict(*args, **kwargs)


class Desk:
    """Types one session after the other."""

    def completer(self, fill, tokens_per_step=64, recorded=()):
        """An engine completer and its denoiser."""
        clock = Clock()
        denoiser = TickingDenoiser(fill, clock, tokens_per_step=tokens_per_step)
        settings = CompletionSettings(check_syntax=False, deadline_ms=60_000, decoder=DecoderName.DIFFUSION.value)
        return EngineCompleter(LocalEngine(denoiser, denoiser.tokenizer, settings), recorded, clock), denoiser

    def replay(self, *tasks, spread=0.0, on_matching_key=MatchingKey.REQUEST, limit=None, seed=0):
        editor = EditorModel(DEBOUNCE * TICK, on_matching_key)
        return Replay([TypingTask(*task) for task in tasks], replace(TYPING, spread=spread), editor, seed, limit)

    def typed(self, text, fill, *, tokens_per_step=64, head="", tail="", **options):
        """Events and summary of one session."""
        completer, _ = self.completer(fill, tokens_per_step)
        events = list(self.replay(("a.py", "python", head, text, tail), **options).run(completer))
        return events, ReplaySummary.of(events)


@pytest.fixture
def desk():
    return Desk()
