"""Prompts that take longer than the deadline: pieces, between which the scheduler looks at other requests."""

import time
from dataclasses import replace

import attrs
import pytest
from gates import LONG, TIMEOUT, Slow, ask, is_idle, wait_until
from scripted import MASK_SPEC, ScriptedDenoiser

from dg_lsp.canvas.spec import DecoderName, FimOrder
from dg_lsp.context.document import Snapshot
from dg_lsp.engine.decoder_selection import StepCosts
from dg_lsp.engine.decoders import base
from dg_lsp.engine.decoders.base import PrefillSpeed
from dg_lsp.engine.engine import MIN_PROMPT, LocalEngine, drain
from dg_lsp.engine.request import ChatRequest
from dg_lsp.postprocess.validate import Reason
from dg_lsp.settings import CompletionSettings

TEXT = "".join(f"value_{number} = {number}\n" for number in range(60)) + "a = "
COSTS = StepCosts(causal=((1, 1.0), (8, 8.0)), canvas=((8, 1.0), (32, 1.0)), prompt_token=10.0)
SPECULATING = CompletionSettings(deadline_ms=60_000, early_stop_ms=0)
DECODERS = [name for name in DecoderName if name not in (DecoderName.AUTO, DecoderName.SPECULATIVE)]


@pytest.fixture
def clock(monkeypatch):
    """Gives the engine the clock of a denoiser."""

    def use(denoiser):
        for name in ("monotonic", "perf_counter"):
            monkeypatch.setattr(time, name, lambda: denoiser.seconds)

    return use


@pytest.fixture
def short_pieces(monkeypatch):
    """All pieces are the shortest, since the denoiser takes no real time."""
    monkeypatch.setattr(PrefillSpeed, "piece", lambda *_: base.MIN_PIECE)


def engine_of(denoiser, settings=SPECULATING):
    return LocalEngine(denoiser, denoiser.tokenizer, settings, COSTS)


@pytest.mark.parametrize("decoder", DECODERS)
def test_the_deadline_is_kept_by_pieces_and_the_next_request_continues_with_the_same_answer(clock, decoder):
    denoiser = Slow()
    clock(denoiser)
    engine = engine_of(denoiser)
    request = ask(text=TEXT[-60:], decoder=decoder)
    unfinished = engine.fill(request, deadline=0.3)
    assert (unfinished.reason, unfinished.is_unfinished, denoiser.num_steps) == (Reason.UNFINISHED, True, 0)
    assert unfinished.cached_tokens == 0 < unfinished.prompt_tokens
    assert denoiser.seconds == pytest.approx(0.3, abs=0.05)
    assert max(denoiser.pieces) <= base.MIN_PIECE
    num_first = denoiser.num_prefilled
    result = engine.fill(request, deadline=1e6)
    assert len(denoiser.pieces) > 3
    assert denoiser.num_prefilled <= result.prompt_tokens + 64  # no prompt token twice
    assert result.cached_tokens == num_first
    whole = engine_of(ScriptedDenoiser("alpha")).fill(request, deadline=1e6)
    assert (result.candidates, whole.cached_tokens) == (whole.candidates, 0)


@pytest.mark.parametrize("order", FimOrder)
def test_a_prompt_that_takes_too_long_is_cut_until_idle_time_has_decoded_the_whole_one(clock, order):
    denoiser = Slow(spec=replace(MASK_SPEC, fim=replace(MASK_SPEC.fim, order=order)))
    clock(denoiser)
    engine = engine_of(denoiser, attrs.evolve(SPECULATING, deadline_ms=1000))

    def typed(text):
        result = engine.fill(ask(text=text))
        assert result.candidates
        return result.prompt_tokens, result.prompt_tokens - result.cached_tokens

    cut, num_decoded = typed(TEXT)
    assert num_decoded == cut <= MIN_PROMPT
    idle = engine.warm_up(ask(text=TEXT))
    for _ in range(3):
        next(idle)
    idle.close()  # by the next key, which finds the short prompt in its slot
    assert typed(f"{TEXT}v")[1] <= base.MIN_PIECE
    drain(engine.warm_up(ask(text=f"{TEXT}v")))
    whole, num_decoded = typed(f"{TEXT}va")
    assert whole > 5 * cut
    assert num_decoded <= base.MIN_PIECE


def test_a_prompt_is_cut_also_where_the_model_decodes_the_same_suffix_again(clock):
    """Not every model whose prompt begins with the prefix can move the states of the suffix."""
    denoiser = Slow(spec=replace(MASK_SPEC, fim=replace(MASK_SPEC.fim, order=FimOrder.PREFIX_FIRST)))
    clock(denoiser)
    engine = engine_of(denoiser, attrs.evolve(SPECULATING, deadline_ms=1000))
    before, typed = (replace(ask(text=text), snapshot=Snapshot("", text + "\n" + TEXT)) for text in ("a = ", "a = v"))
    drain(engine.warm_up(before))
    result = engine.fill(typed)
    assert result.candidates
    assert result.is_prompt_cut


def test_a_fill_of_a_cut_prompt_is_computed_again_in_idle_time(scheduler_of):
    settings = attrs.evolve(SPECULATING, deadline_ms=1000)
    scheduler = scheduler_of(ScriptedDenoiser("alpha"), settings, engine=lambda *parts: LocalEngine(*parts, COSTS))
    first = scheduler.submit(ask(text=TEXT)).result(TIMEOUT)
    wait_until(lambda: is_idle(scheduler))
    typed = scheduler.submit(ask(text=f"{TEXT}al")).result(TIMEOUT)
    assert (first.text, typed.text, typed.is_cached) == ("alpha", "pha", True)
    assert first.prompt_tokens <= MIN_PROMPT < typed.prompt_tokens
    whole = engine_of(ScriptedDenoiser("alpha"), attrs.evolve(settings, speculate=False)).fill(ask(text=TEXT))
    assert whole.prompt_tokens > MIN_PROMPT


@pytest.mark.usefixtures("short_pieces")
@pytest.mark.parametrize("num_slots", [1, 4])
def test_a_more_urgent_request_is_served_between_two_pieces(scheduler_of, num_slots):
    denoiser = Slow(num_free=2, num_slots=num_slots)
    scheduler = scheduler_of(denoiser, LONG)
    chat = scheduler.submit(ChatRequest((), "a", text=TEXT, max_tokens=5))
    assert denoiser.is_waiting.wait(TIMEOUT)
    order = []
    typed = scheduler.submit(ask("file:///b.py"))
    typed.add_done_callback(lambda _: order.append(("typed", denoiser.num_prefilled)))
    chat.add_done_callback(lambda _: order.append(("chat", denoiser.num_prefilled)))
    denoiser.allowed.release(1000)
    assert (chat.result(TIMEOUT).text, typed.result(TIMEOUT).text) == ("alpha", "alpha")
    wait_until(lambda: len(order) == 2)
    assert [name for name, _ in order] == ["typed", "chat"]
    assert order[0][1] < len(TEXT) < order[1][1]


@pytest.mark.usefixtures("short_pieces")
@pytest.mark.parametrize("speculate", [True, False])
def test_an_unfinished_fill_is_finished_in_idle_time_where_the_settings_allow_it(scheduler_of, speculate):
    denoiser = Slow(num_free=1)
    scheduler = scheduler_of(denoiser, attrs.evolve(SPECULATING, speculate=speculate))
    request = replace(ask(text=TEXT), deadline_ms=100.0)
    future = scheduler.submit(request)
    assert denoiser.is_waiting.wait(TIMEOUT)
    assert future.result(TIMEOUT).is_unfinished  # though the model is busy with a piece
    denoiser.allowed.release(1000)
    wait_until(lambda: is_idle(scheduler))
    num_steps = denoiser.num_steps
    assert (num_steps > 0) is speculate
    assert denoiser.num_prefilled <= len(TEXT) + 64
    if speculate:
        again = scheduler.submit(replace(request, deadline_ms=None)).result(TIMEOUT)
        assert (again.text, again.is_cached, denoiser.num_steps) == ("alpha", True, num_steps)
