"""A typist, an editor and a model whose every time is a whole number of ticks, so that sessions can be done by hand.

One tick is 1/64 s: sums of ticks are exact in binary.
"""

import pytest

from dg_lsp.backends.scripted import ScriptedDenoiser
from dg_lsp.bench.replay.account import Account
from dg_lsp.bench.replay.asking import LiveAsker
from dg_lsp.bench.replay.editor import Editor, TypeThrough
from dg_lsp.bench.replay.keys import Typist
from dg_lsp.bench.replay.passage import Passage
from dg_lsp.bench.replay.session import Session
from dg_lsp.engine.engine import Engine
from dg_lsp.settings import FillSettings

TICK = 1000 / 64
KEY, DEBOUNCE, REACTION = 8, 4, 12
"""Ticks. A key each 8, a request 4 after it, an item accepted 12 after it came."""

TYPIST = Typist(
    in_word_ms=KEY * TICK,
    word_start_ms=KEY * TICK,
    line_start_ms=KEY * TICK,
    spread=0,
    reaction_ms=REACTION * TICK,
)


class Clock:
    """Stands still but for the model's steps."""

    def __init__(self):
        self.ticks = 0

    def __call__(self):
        return self.ticks / 64


class TickingDenoiser(ScriptedDenoiser):
    """A step is one tick, a prefill none."""

    def __init__(self, fill, clock, **script):
        super().__init__(fill, **script)
        self._clock = clock

    def predict(self, *args, **kwargs):
        self._clock.ticks += 1
        return super().predict(*args, **kwargs)


class Desk:
    """Where one session after the other is typed."""

    tick = TICK
    typist = TYPIST

    def editor(self, type_through=TypeThrough.ASK):
        return Editor(DEBOUNCE * TICK, type_through)

    def asker(self, fill, tokens_per_step=64):
        """A live asker, and the denoiser behind it. `fill` is what the scripted model takes."""
        clock = Clock()
        denoiser = TickingDenoiser(fill, clock, tokens_per_step=tokens_per_step)
        settings = FillSettings(check_syntax=False, deadline_ms=60_000, decoder="diffusion")
        return LiveAsker(Engine(denoiser, denoiser.tokenizer, settings), clock), denoiser

    def passage(self, text, head="", tail=""):
        return Passage("a.py", "python", head, text, tail)

    def typed(self, text, fill, *, type_through=TypeThrough.ASK, tokens_per_step=64, head="", tail=""):
        """Events of one session, and their account."""
        asker, _ = self.asker(fill, tokens_per_step)
        asker.begin()
        session = Session(self.passage(text, head, tail), TYPIST, self.editor(type_through), asker)
        events = list(session.run())
        return events, Account.of(events)


@pytest.fixture
def desk():
    return Desk()
