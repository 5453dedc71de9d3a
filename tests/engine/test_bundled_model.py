"""The bundled model: cache, drafts and interruptions change the time of a fill and never its text."""

import math
import tomllib
from pathlib import Path

import pytest

from dg_lsp.canvas.layout import common_prefix_length
from dg_lsp.canvas.spec import DecoderName
from dg_lsp.cli.loading import open_engine
from dg_lsp.cli.source import SourceFile
from dg_lsp.context.document import Snapshot
from dg_lsp.engine.engine import drain
from dg_lsp.engine.request import FillRequest, RewriteRequest
from dg_lsp.settings import CompletionSettings, ModelSettings, Settings

SAMPLES = Path(__file__).parents[2] / "samples"
SOURCE = (SAMPLES / "inventory.py").read_text(encoding="utf-8")
POSITIONS = tomllib.loads((SAMPLES / "places.toml").read_text(encoding="utf-8"))["places"]
"""Cursors with the texts that are right there."""


def opened(num_slots=4):
    runtime = ModelSettings(threads=1, gpu_layers=0, num_slots=num_slots)
    return open_engine(Settings(model=runtime, completion=CompletionSettings(early_stop_ms=0, min_confidence=0.0)))


@pytest.fixture(scope="module")
def engine():
    engine = opened()
    yield engine
    engine.close()


@pytest.fixture(scope="module", params=[1, 4], ids=["one slot", "four slots"])
def interruptible(request):
    engine = opened(request.param)
    yield engine
    engine.close()


def typed(num_chars):
    """The sample with a line being typed in its middle."""
    at = SOURCE.index("\n", len(SOURCE) // 2) + 1
    line = "    total_value = self.count_items(name)"[:num_chars]
    text = SOURCE[:at] + line + "\n" + SOURCE[at:]
    return FillRequest(Snapshot("file:///inventory.py", text), at + len(line))


def at_position(position, **options):
    source = SourceFile.read(SAMPLES / position["file"])
    return FillRequest(source.snapshot(), source.offset_at(position["line"], position.get("col")), **options)


def at_line(name, share, **options):
    """An indented blank line at this share of a sample."""
    text = (SAMPLES / name).read_text(encoding="utf-8")
    at = text.index("\n", int(share * len(text))) + 1
    return FillRequest(Snapshot(f"file:///{name}", text[:at] + "    " + text[at:]), at + 4, **options)


def texts_of(result):
    return [item.text for item in (*result.candidates, *result.rejections)]


def fill(engine, request):
    return engine.fill(request, deadline=math.inf)


def test_cached_prompt_gives_the_same_candidates(engine):
    for num_chars in (8, 9, 14, 20):
        fill(engine, typed(num_chars))
    warm = fill(engine, typed(21))
    fresh = opened()
    cold = fill(fresh, typed(21))
    fresh.close()
    assert warm.cached_tokens > cold.cached_tokens == 0
    assert texts_of(warm) == texts_of(cold)
    assert warm.steps == cold.steps
    for cached, computed in zip(warm.candidates, cold.candidates, strict=True):
        assert cached.score == pytest.approx(computed.score, abs=0.02)


@pytest.mark.parametrize("position", POSITIONS[::4], ids=lambda position: f"{position['file']}:{position['line']}")
def test_drafts_do_not_change_the_text(engine, position):
    def draft_of(decoder):
        *_, last = engine.run(at_position(position, decoder=decoder), deadline=math.inf)
        return last.draft

    plain = draft_of(DecoderName.AUTOREGRESSIVE)
    assert len(plain.ids)
    draft = draft_of(DecoderName.PROMPT_LOOKUP)
    num_same = common_prefix_length(draft.ids, plain.ids)
    if num_same < max(len(draft.ids), len(plain.ids)):  # two equally probable tokens, rounded in another pass
        assert draft.confidence[num_same] == pytest.approx(plain.confidence[num_same], abs=0.01)
        assert draft.confidence[num_same] < 0.51


def interrupted(engine, steps, interruption):
    """The result of `steps`, with another request computed after every pass.

    Not between two pieces of a prompt: where a slow processor needs several, each of them would begin again.
    """
    while True:
        try:
            progress = next(steps)
        except StopIteration as end:
            return end.value
        if len(progress.ids):
            fill(engine, interruption)


@pytest.mark.parametrize(
    ("decoder", "num_candidates"),
    [
        *((name, 1) for name in DecoderName if name not in (DecoderName.AUTO, DecoderName.SPECULATIVE)),
        (DecoderName.DIFFUSION, 3),
    ],
)
def test_interrupted_fill_gives_the_same_result(interruptible, decoder, num_candidates):
    wanted = at_line("inventory.py", 0.5, decoder=decoder, num_candidates=num_candidates, max_tokens=24)
    interruption = at_line("words.py", 0.4, decoder=DecoderName.AUTOREGRESSIVE, max_tokens=6)
    alone = fill(interruptible, wanted)
    result = interrupted(interruptible, interruptible.run(wanted, deadline=math.inf), interruption)
    assert texts_of(result) == texts_of(alone)
    assert result.steps == alone.steps > 1


def test_interrupted_rewrite_gives_the_same_result(interruptible):
    start = SOURCE.index("return ")
    snapshot = Snapshot("file:///inventory.py", SOURCE)
    wanted = RewriteRequest(snapshot, start, SOURCE.index("\n", start), strength=0.5)
    interruption = at_line("words.py", 0.4, decoder=DecoderName.AUTOREGRESSIVE, max_tokens=6)
    alone = drain(interruptible.rewrite(wanted, deadline=math.inf))
    result = interrupted(interruptible, interruptible.rewrite(wanted, deadline=math.inf), interruption)
    assert (result.text, result.verdict, result.steps) == (alone.text, alone.verdict, alone.steps)
    assert alone.steps > 1
