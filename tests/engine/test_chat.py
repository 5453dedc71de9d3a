"""Answers to conversations, by models that recite one."""

import math
from dataclasses import replace

import pytest
from chatty import chatty

from dg_lsp.backends.scripted import MASK_SPEC, UNIFORM_SPEC, ScriptedDenoiser
from dg_lsp.canvas.chat import Role, Turn
from dg_lsp.engine.chat import ChatRequest
from dg_lsp.engine.engine import Engine, drain
from dg_lsp.engine.scheduler import Scheduler
from dg_lsp.errors import ModelUnsupportedError, RequestError
from dg_lsp.postprocess.validate import Reason
from dg_lsp.settings import FillSettings

TIMEOUT = 30
ASKED = ChatRequest((Turn(Role.USER, "hi"),), "name")
ANSWER = "One line.\n\nAnd a second one, which is longer than the longest canvas, so that it goes on in another."


def engine_of(answer, spec=MASK_SPEC, **script):
    denoiser = chatty(answer, spec, **script)
    return Engine(denoiser, denoiser.tokenizer, FillSettings()), denoiser


def chat(engine, request=ASKED, deadline=math.inf):
    return drain(engine.chat(request, deadline=deadline))


@pytest.mark.parametrize("spec", [MASK_SPEC, UNIFORM_SPEC], ids=["masks", "uniform noise"])
def test_the_answer_comes_as_it_is(spec):
    engine, _ = engine_of("  x = [\n", spec)
    result = chat(engine)
    assert result.text == "  x = [\n"
    assert result.plan.value == "canvas"
    assert result.prompt_tokens == len("user\nhi\nmodel\nthought\n") + 6


def test_an_answer_longer_than_a_canvas_goes_on_in_another():
    engine, _ = engine_of(ANSWER)
    result = chat(engine)
    assert result.text == ANSWER
    assert len(ANSWER) > result.canvas_length == 64


def test_max_tokens_bound_it():
    engine, _ = engine_of(ANSWER)
    assert chat(engine, replace(ASKED, max_tokens=70)).text == ANSWER[:70]


def test_the_next_question_decodes_what_is_new():
    engine, denoiser = engine_of("ok")
    first = (Turn(Role.USER, "x" * 100),)
    chat(engine, replace(ASKED, turns=first))
    before = denoiser.num_prefilled
    turns = (*first, Turn(Role.ASSISTANT, "ok"), Turn(Role.USER, "more"))
    result = chat(engine, replace(ASKED, turns=turns))
    assert result.cached_tokens > 100
    assert denoiser.num_prefilled - before == result.prompt_tokens - result.cached_tokens


def test_at_the_deadline_what_is_settled_is_the_answer():
    engine, _ = engine_of(ANSWER)
    steps = engine.chat(ASKED, deadline=-math.inf)
    with pytest.raises(StopIteration) as end:
        next(steps)
    assert [one.reason for one in end.value.value.rejections] == [Reason.UNFINISHED]


def test_looked_at_step_by_step():
    engine, _ = engine_of("abcdefgh", tokens_per_step=4)
    settled = [engine.framer().frame(progress).settled_text for progress in engine.chat(ASKED, deadline=math.inf)]
    assert settled == ["abcd", "abcdefgh", "abcdefgh"]


def test_who_has_no_template_cannot_chat():
    denoiser = ScriptedDenoiser("x")
    with pytest.raises(ModelUnsupportedError, match="has no chat template"):
        chat(Engine(denoiser, denoiser.tokenizer, FillSettings()))


def test_too_much_was_said():
    engine, _ = engine_of("x")
    with pytest.raises(RequestError, match="shorten it"):
        chat(engine, replace(ASKED, turns=(Turn(Role.USER, "x" * 600),)))


@pytest.fixture
def worker():
    """A worker whose model answers slowly, and the model."""
    denoiser = chatty(ANSWER, step_seconds=0.02, tokens_per_step=1)
    worker = Scheduler(lambda: Engine(denoiser, denoiser.tokenizer, FillSettings()), FillSettings())
    yield worker, denoiser
    worker.close()


def test_a_newer_question_of_a_conversation_takes_the_olders_place(worker):
    worker, denoiser = worker
    stale = worker.submit_chat(ASKED)
    other = worker.submit_chat(replace(ASKED, name="other", max_tokens=4))
    newer = worker.submit_chat(replace(ASKED, max_tokens=4))
    assert stale.cancelled()
    assert (other.result(TIMEOUT).text, newer.result(TIMEOUT).text) == (ANSWER[:4], ANSWER[:4])
    assert denoiser.num_steps <= 1 + 4 + 4


def test_the_deadline_covers_waiting(worker):
    worker, _ = worker
    first = worker.submit_chat(ASKED)
    result = worker.submit_chat(replace(ASKED, name="other", deadline_ms=20)).result(TIMEOUT)
    assert [one.reason for one in result.rejections] == [Reason.UNFINISHED]
    assert first.cancel()


def test_who_looks_sees_every_step(worker):
    worker, _ = worker
    seen = []
    worker.submit_chat(replace(ASKED, max_tokens=4), seen.append).result(TIMEOUT)
    assert [progress.number for progress in seen] == [1, 2, 3, 4]


def test_a_worker_that_is_closed_answers_nobody(worker):
    worker, _ = worker
    worker.close()
    assert worker.submit_chat(ASKED).cancelled()
