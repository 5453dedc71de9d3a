"""Two requests that take turns get what they would get alone, by every decoder, however many slots there are."""

import math
from pathlib import Path

import pytest

from dg_lsp.canvas.spec import DecoderName
from dg_lsp.cli.loading import open_engine
from dg_lsp.context.document import Snapshot
from dg_lsp.engine.engine import drain
from dg_lsp.engine.request import FillRequest, RewriteRequest
from dg_lsp.settings import FillSettings, RuntimeSettings, Settings

SAMPLES = Path(__file__).parents[2] / "samples"


@pytest.fixture(scope="module", params=[1, 4], ids=["one slot", "four slots"])
def engine(request):
    settings = Settings(
        runtime=RuntimeSettings(threads=1, gpu_layers=0, num_slots=request.param), fill=FillSettings(early_stop_ms=0)
    )
    engine = open_engine(settings)
    yield engine
    engine.close()


def place(name, share, **more):
    text = (SAMPLES / name).read_text(encoding="utf-8")
    at = text.index("\n", int(share * len(text))) + 1
    return FillRequest(Snapshot(f"file:///{name}", 1, text[:at] + "    " + text[at:]), at + 4, **more)


def shown(result):
    return [(one.text, round(one.score, 4)) for one in result.candidates], result.steps


def interrupted(engine, steps, other):
    """The first one's result, with the other made anew between any two of its passes."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value
        engine.fill(other, deadline=math.inf)


@pytest.mark.parametrize("decoder", ["diffusion", "diffusion", "autoregressive", "speculative", "prompt-lookup"])
def test_a_fill_is_the_same_when_it_is_interrupted(engine, decoder):
    wanted = place(
        "inventory.py",
        0.5,
        decoder=DecoderName(decoder),
        num_candidates=3 if decoder == "diffusion" else 1,
        max_tokens=24,
    )
    other = place("words.py", 0.4, decoder=DecoderName.AUTOREGRESSIVE, max_tokens=6)
    alone = engine.fill(wanted, deadline=math.inf)
    assert shown(interrupted(engine, engine.run(wanted, deadline=math.inf), other)) == shown(alone)


def test_a_rewrite_is_the_same_when_it_is_interrupted(engine):
    text = (SAMPLES / "inventory.py").read_text(encoding="utf-8")
    start = text.index("return ")
    wanted = RewriteRequest(Snapshot("file:///inventory.py", 1, text), start, text.index("\n", start), strength=0.5)
    other = place("words.py", 0.4, decoder=DecoderName.AUTOREGRESSIVE, max_tokens=6)
    alone = drain(engine.rewrite(wanted, deadline=math.inf))
    result = interrupted(engine, engine.rewrite(wanted, deadline=math.inf), other)
    assert (result.text, result.rejection, result.steps) == (alone.text, alone.rejection, alone.steps)
    assert alone.steps > 1
