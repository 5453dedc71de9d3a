"""The bundled model: what typing costs, and that the cache changes nothing but the time."""

import math
from pathlib import Path

import pytest

from dg_lsp.cli.loading import open_engine
from dg_lsp.context.document import Snapshot
from dg_lsp.engine.request import FillRequest
from dg_lsp.settings import RuntimeSettings, Settings

SOURCE = Path(__file__).parents[2] / "samples" / "inventory.py"
SETTINGS = Settings(runtime=RuntimeSettings(threads=1, gpu_layers=0))


@pytest.fixture
def new_engine():
    opened = []

    def make():
        opened.append(open_engine(SETTINGS))
        return opened[-1]

    yield make
    for engine in opened:
        engine.close()


def typed(num_chars):
    """The sample with a line being typed in its middle."""
    text = SOURCE.read_text(encoding="utf-8")
    at = text.index("\n", len(text) // 2) + 1
    line = "    total_value = self.count_items(name)"[:num_chars]
    return FillRequest(Snapshot("file:///inventory.py", num_chars, text[:at] + line + "\n" + text[at:]), at + len(line))


def fill(engine, request):
    return engine.fill(request, deadline=math.inf)


def test_a_typed_character_decodes_at_most_16_prompt_tokens(new_engine):
    engine = new_engine()
    fill(engine, typed(8))
    decoded = []
    for num_chars in range(9, 40):
        result = fill(engine, typed(num_chars))
        decoded.append(result.prompt_tokens - result.cached_tokens)
    assert max(decoded) <= 16
    assert result.prompt_tokens > 150


def test_results_with_and_without_reuse_are_identical(new_engine):
    used = new_engine()
    fill(used, typed(8))
    for num_chars in (9, 14, 20):
        fill(used, typed(num_chars))
    request = typed(21)
    warm, cold = fill(used, request), fill(new_engine(), request)
    assert warm.cached_tokens > 0
    assert cold.cached_tokens == 0
    assert [c.text for c in warm.candidates] == [c.text for c in cold.candidates]
    assert [r.text for r in warm.rejections] == [r.text for r in cold.rejections]
    assert warm.steps == cold.steps
    for one, other in zip(warm.candidates, cold.candidates, strict=True):
        assert one.score == pytest.approx(other.score, abs=0.02)


def test_several_candidates_come_from_one_batch_and_the_first_is_the_one_it_would_be_alone(new_engine):
    engine = new_engine()
    request = typed(14)
    alone = fill(engine, request)
    several = fill(engine, FillRequest(request.snapshot, request.offset, num_candidates=3))
    best = [c.text for c in alone.candidates]
    assert set(best) <= {c.text for c in several.candidates}
