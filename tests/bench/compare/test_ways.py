import math

import pytest

from dg_lsp.backends.scripted import ScriptedDenoiser
from dg_lsp.bench.sites import Site
from dg_lsp.bench.ways import EngineWay, Terms, attempt_of, before_last_key, first_lines
from dg_lsp.canvas.spec import DecoderName
from dg_lsp.engine.engine import Engine
from dg_lsp.settings import FillSettings

SITE = Site("s1", "line-end", "def area(w, h):\n    return ", "\n\nprint(area(2, 3))\n", "w * h")


@pytest.fixture
def engine():
    def make(fill, **options):
        denoiser = ScriptedDenoiser(fill, **options)
        return Engine(denoiser, denoiser.tokenizer, FillSettings(early_stop_ms=0))

    return make


def test_an_engines_answer_is_an_attempt(engine):
    way = EngineWay("diffusion", engine("w * h", tokens_per_step=2, step_seconds=0.002), DecoderName.DIFFUSION)
    attempt = way.answer(SITE)
    assert (attempt.site, attempt.kind, attempt.way, attempt.decoder) == ("s1", "line-end", "diffusion", "diffusion")
    assert attempt.text == attempt.want == "w * h"
    assert attempt.is_exact
    assert attempt.passes is None
    assert attempt.rejection is None
    assert attempt.steps == 3
    assert attempt.tokens == 6  # the end token is one
    assert attempt.confidence == pytest.approx(math.log(0.99), abs=1e-3)
    assert attempt.shown[0].ms == attempt.latency_ms == attempt.ttfue_ms
    assert 6 <= attempt.model_ms <= attempt.latency_ms
    assert attempt.prefill_ms < attempt.model_ms


def test_an_answer_that_is_not_shown_says_why(engine):
    attempt = EngineWay("diffusion", engine(""), DecoderName.DIFFUSION).answer(SITE)
    assert attempt.shown == ()
    assert attempt.rejection == "empty"
    assert math.isnan(attempt.confidence)
    assert not attempt.is_exact
    assert attempt.latency_ms > 0


def test_a_warm_way_has_the_prompt_but_for_its_end_in_the_cache(engine):
    cold, warm = engine("w * h"), engine("w * h")
    denoisers = [one._denoiser for one in (cold, warm)]
    EngineWay("a", cold, DecoderName.DIFFUSION).answer(SITE)
    way = EngineWay("a", warm, DecoderName.DIFFUSION, Terms(is_warm=True))
    num_before = denoisers[1].num_prefilled
    attempt = way.answer(SITE)
    # one byte of the prefix and the middle sentinel are decoded again
    assert denoisers[1].num_prefilled - num_before == denoisers[0].num_prefilled - 1 + 2
    assert attempt.text == "w * h"


def test_the_same_site_is_answered_the_same_again(engine):
    way = EngineWay("diffusion", engine("w * h"), DecoderName.DIFFUSION)
    assert way.answer(SITE).text == way.answer(SITE).text
    assert list(way.notes()) == []
    way.close()
    assert way.engine._denoiser.is_closed


def test_the_text_before_the_last_key():
    assert before_last_key(SITE).prefix == SITE.prefix[:-1]
    assert before_last_key(Site("s", "block", "", "x", "y")).prefix == ""


@pytest.mark.parametrize(("prefix", "suffix", "num"), [("a = ", "\n", 1), ("a(", ")\n", 1), ("a\n", "\nb", None)])
def test_the_place_decides_how_many_lines_are_wanted_or_the_reference(prefix, suffix, num):
    site = Site("s", "", prefix, suffix, "x\ny\n")
    assert Terms().num_lines(site) == num
    assert Terms(is_oracle=True).num_lines(site) == 2


def test_lines_are_cut():
    assert first_lines("a\nb\nc\n", None) == "a\nb\nc\n"
    assert first_lines("a\nb\nc\n", 2) == "a\nb"
    assert first_lines("a", 2) == "a"


def test_a_way_that_is_told_the_lines_gives_as_many(engine):
    site = Site("s", "block", "def f(w, h):\n    ", "\n    return a\n", "a = w\n    b = h")
    fill = "a = w\n    b = h\n    c = 1\n"
    told = EngineWay("d", engine(fill), DecoderName.DIFFUSION, Terms(is_oracle=True)).answer(site)
    assert told.text == site.want
    assert EngineWay("d", engine(fill), DecoderName.DIFFUSION).answer(site).text == "a = w\n    b = h\n    c = 1"


def test_the_reference_may_have_blanks_at_its_lines_ends(engine):
    own = engine("w * h")
    result = own.fill(EngineWay("x", engine(""), DecoderName.DIFFUSION).request(SITE), deadline=math.inf)
    padded = Site("s", "line-end", SITE.prefix, SITE.suffix, "w * h  \n")
    assert attempt_of(own, result, padded, "x", 1.0).is_exact


def test_whole_lines_are_enough_for_who_has_no_patience(engine):
    fill, site = "a = w\n    b = h\n", Site("s", "block", "def f(w, h):\n    ", "\n    return a\n", "a = w")
    slow = {"tokens_per_step": 1, "step_seconds": 0.001}
    patient = EngineWay("d", engine(fill, **slow), DecoderName.DIFFUSION).answer(site)
    hasty = EngineWay("d", engine(fill, **slow), DecoderName.DIFFUSION, Terms(early_stop_ms=0.001)).answer(site)
    assert patient.text == "a = w\n    b = h"
    assert hasty.text == "a = w"
    assert hasty.steps < patient.steps
