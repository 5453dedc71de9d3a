"""The decoders over the bundled model: the text does not depend on what was guessed."""

import math
from pathlib import Path

import pytest

from dg_lsp.bench.samples import read_places
from dg_lsp.canvas.layout import common_prefix_length
from dg_lsp.canvas.spec import DecoderName
from dg_lsp.cli.loading import open_engine
from dg_lsp.cli.source import SourceFile
from dg_lsp.engine.request import FillRequest
from dg_lsp.settings import RuntimeSettings, Settings

SAMPLES = Path(__file__).parents[3] / "samples"


@pytest.fixture(scope="module")
def engine():
    opened = open_engine(Settings(runtime=RuntimeSettings(threads=1, gpu_layers=0)))
    yield opened
    opened.close()


def draft_of(engine, place, decoder):
    source = SourceFile.read(SAMPLES / place.file)
    request = FillRequest(source.snapshot(), source.offset_at(place.line, place.col), decoder=decoder)
    *_, last = engine.run(request, deadline=math.inf)
    return last.draft


def check_same(draft, causal):
    """The same tokens; where two are equally probable, one pass over several may round the other way."""
    num_same = common_prefix_length(draft.ids, causal.ids)
    if num_same < max(len(draft.ids), len(causal.ids)):
        assert draft.confidence[num_same] == pytest.approx(causal.confidence[num_same], abs=0.01)
        assert draft.confidence[num_same] < 0.51


@pytest.mark.parametrize(
    "place", read_places(SAMPLES / "places.toml")[::4], ids=lambda place: f"{place.file}:{place.line}"
)
def test_guesses_change_nothing(engine, place):
    causal = draft_of(engine, place, DecoderName.AUTOREGRESSIVE)
    assert len(causal.ids)
    check_same(draft_of(engine, place, DecoderName.PROMPT_LOOKUP), causal)
    check_same(draft_of(engine, place, DecoderName.SPECULATIVE), causal)
