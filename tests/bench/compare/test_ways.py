import math

import pytest

from dg_lsp.backends.scripted import ScriptedDenoiser
from dg_lsp.bench.sites import Site
from dg_lsp.bench.ways import EngineWay, attempt_of, before_last_key, has_one_line
from dg_lsp.engine.engine import Engine
from dg_lsp.engine.plans.name import PlanName
from dg_lsp.settings import FillSettings

SITE = Site("s1", "line-end", "def area(w, h):\n    return ", "\n\nprint(area(2, 3))\n", "w * h")


@pytest.fixture
def engine():
    def make(fill, **options):
        denoiser = ScriptedDenoiser(fill, **options)
        return Engine(denoiser, denoiser.tokenizer, FillSettings(patience_ms=0))

    return make


def test_an_engines_answer_is_an_attempt(engine):
    way = EngineWay("diffusion", engine("w * h", tokens_per_step=2, step_seconds=0.002), PlanName.CANVAS)
    attempt = way.answer(SITE)
    assert (attempt.site, attempt.kind, attempt.way, attempt.plan) == ("s1", "line-end", "diffusion", "canvas")
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
    attempt = EngineWay("diffusion", engine(""), PlanName.CANVAS).answer(SITE)
    assert attempt.shown == ()
    assert attempt.rejection == "empty"
    assert math.isnan(attempt.confidence)
    assert not attempt.is_exact
    assert attempt.latency_ms > 0


def test_a_warm_way_has_the_prompt_but_for_its_end_in_the_cache(engine):
    cold, warm = engine("w * h"), engine("w * h")
    denoisers = [one._denoiser for one in (cold, warm)]
    EngineWay("a", cold, PlanName.CANVAS).answer(SITE)
    way = EngineWay("a", warm, PlanName.CANVAS, is_warm=True)
    num_before = denoisers[1].num_prefilled
    attempt = way.answer(SITE)
    # one byte of the prefix and the middle sentinel are decoded again
    assert denoisers[1].num_prefilled - num_before == denoisers[0].num_prefilled - 1 + 2
    assert attempt.text == "w * h"


def test_the_same_site_is_answered_the_same_again(engine):
    way = EngineWay("diffusion", engine("w * h"), PlanName.CANVAS)
    assert way.answer(SITE).text == way.answer(SITE).text
    assert list(way.notes()) == []
    way.close()
    assert way.engine._denoiser.is_closed


def test_the_text_before_the_last_key():
    assert before_last_key(SITE).prefix == SITE.prefix[:-1]
    assert before_last_key(Site("s", "block", "", "x", "y")).prefix == ""


@pytest.mark.parametrize(
    ("prefix", "suffix", "one"), [("a = ", "\n", True), ("a(", ")\n", True), ("a\n", "\nb", False)]
)
def test_a_line_with_text_takes_one_line(prefix, suffix, one):
    assert has_one_line(Site("s", "", prefix, suffix, "x")) is one


def test_the_reference_may_have_blanks_at_its_lines_ends(engine):
    result = engine("w * h").fill(EngineWay("x", engine(""), PlanName.CANVAS).request(SITE), deadline=math.inf)
    padded = Site("s", "line-end", SITE.prefix, SITE.suffix, "w * h  \n")
    assert attempt_of(result, padded, "x", 1.0).is_exact
