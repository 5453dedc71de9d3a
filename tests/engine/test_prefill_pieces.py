"""Prompts that take longer than the deadline: pieces, between which the scheduler looks at other requests."""

import threading
import time
from dataclasses import replace

import attrs
import numpy as np
import pytest
from gates import LONG, TIMEOUT, ask, is_idle, wait_until

from dg_lsp.backends.scripted import ScriptedDenoiser
from dg_lsp.canvas.layout import token_ids
from dg_lsp.canvas.spec import DecoderName
from dg_lsp.engine.decoder_selection import StepCosts
from dg_lsp.engine.decoders import base
from dg_lsp.engine.decoders.base import PrefillSpeed, prefill
from dg_lsp.engine.engine import LocalEngine, drain
from dg_lsp.engine.request import ChatRequest
from dg_lsp.postprocess.validate import Reason
from dg_lsp.settings import CompletionSettings

TEXT = "".join(f"value_{number} = {number}\n" for number in range(60)) + "a = "
COSTS = StepCosts(causal=((1, 1.0), (8, 8.0)), canvas=((8, 1.0), (32, 1.0)), prompt_token=10.0)
SPECULATING = CompletionSettings(deadline_ms=60_000, early_stop_ms=0, check_syntax=False)
DECODERS = [name for name in DecoderName if name not in (DecoderName.AUTO, DecoderName.SPECULATIVE)]


class Slow(ScriptedDenoiser):
    """A token of a prompt takes 10 ms of its clock; a piece may wait for the test."""

    def __init__(self, fill="alpha", num_free=10**6, **script):
        super().__init__(fill, **script)
        self.now, self.pieces = 0.0, []
        self.allowed, self.is_waiting = threading.Semaphore(num_free), threading.Event()

    def prefill(self, slot, prompt_ids, *most):
        if not self.allowed.acquire(blocking=False):
            self.is_waiting.set()
            assert self.allowed.acquire(timeout=TIMEOUT)
        num_decoded = super().prefill(slot, prompt_ids, *most)
        self.pieces.append(num_decoded)
        self.now += 0.01 * num_decoded
        return num_decoded


@pytest.fixture
def clock(monkeypatch):
    """Gives the engine the clock of a denoiser."""

    def use(denoiser):
        for name in ("monotonic", "perf_counter"):
            monkeypatch.setattr(time, name, lambda: denoiser.now)

    return use


@pytest.fixture
def short_pieces(monkeypatch):
    """All pieces are the shortest, since the denoiser takes no real time."""
    monkeypatch.setattr(PrefillSpeed, "piece", lambda *_: base.MIN_PIECE)


def engine_of(denoiser, settings=SPECULATING):
    return LocalEngine(denoiser, denoiser.tokenizer, settings, COSTS)


def decoded(denoiser, before=0):
    return denoiser.num_prefilled - before


@pytest.mark.parametrize("decoder", DECODERS)
def test_the_deadline_is_kept_though_the_prompt_takes_ten_times_as_long(clock, decoder):
    denoiser = Slow()
    clock(denoiser)
    result = engine_of(denoiser).fill(ask(text=TEXT, decoder=decoder), deadline=1.0)
    assert (result.reason, result.is_unfinished, denoiser.num_steps) == (Reason.UNFINISHED, True, 0)
    assert denoiser.now == pytest.approx(1.0, abs=0.05)
    assert max(denoiser.pieces) <= base.MIN_PIECE


@pytest.mark.parametrize("decoder", DECODERS)
def test_the_next_try_continues_where_the_first_stopped(clock, decoder):
    denoiser = Slow()
    clock(denoiser)
    engine, request = engine_of(denoiser), ask(text=TEXT, decoder=decoder)
    unfinished = engine.fill(request, deadline=1.0)
    assert unfinished.cached_tokens == 0 < unfinished.prompt_tokens
    num_first = decoded(denoiser)
    assert [state.num_tokens for state in engine.slots if state.num_tokens] == [num_first]
    result = engine.fill(request, deadline=1e6)
    assert result.text == engine_of(ScriptedDenoiser("alpha")).fill(request, deadline=1e6).text
    assert num_first + decoded(denoiser, num_first) <= result.prompt_tokens + 64  # no prompt token twice
    assert result.cached_tokens == num_first


@pytest.mark.parametrize("decoder", DECODERS)
def test_pieces_change_no_answer(clock, decoder):
    pieces, whole = Slow(), ScriptedDenoiser("alpha")
    clock(pieces)
    request = ask(text=TEXT, decoder=decoder)
    results = engine_of(pieces).fill(request, deadline=1e6), engine_of(whole).fill(request, deadline=1e6)
    assert len(pieces.pieces) > 10
    texts, costs = ([getattr(each, name) for each in results] for name in ("candidates", "cached_tokens"))
    assert texts[0] == texts[1]
    assert costs == [0, 0]


def test_the_size_of_a_piece_follows_the_measured_speed():
    speed = PrefillSpeed(1.0)
    assert speed.piece(np.inf) == 30
    speed.measure(30, 0.003)
    assert speed.piece(np.inf) == 300
    speed.measure(300, 30.0)
    assert speed.piece(np.inf) == base.MIN_PIECE  # fewer cost almost as much
    speed.measure(1, 1000.0)  # the constant cost of a pass
    assert speed.piece(np.inf) == base.MIN_PIECE
    assert speed.piece(time.monotonic() - 1) == 1


def test_a_model_without_a_cache_gets_its_prompt_at_once():
    class Uncached(ScriptedDenoiser):
        def prefill(self, _slot, prompt_ids, *_most):
            return len(prompt_ids)

    prompt = token_ids([9] * 100)
    assert drain(prefill(Uncached("x"), 0, prompt, PrefillSpeed(10.0))) == 100


@pytest.mark.usefixtures("short_pieces")
def test_a_cancelled_request_stops_between_two_pieces(scheduler_of):
    denoiser = Slow(num_free=2)
    scheduler = scheduler_of(denoiser, LONG)
    future = scheduler.submit(ask(text=TEXT))
    assert denoiser.is_waiting.wait(20)
    assert future.cancel()
    denoiser.allowed.release(1000)
    wait_until(lambda: is_idle(scheduler))
    assert (decoded(denoiser) < len(TEXT), denoiser.num_steps) == (True, 0)
    assert scheduler.slots[-1].num_tokens <= decoded(denoiser)


@pytest.mark.usefixtures("short_pieces")
@pytest.mark.parametrize("num_slots", [1, 4])
def test_a_more_urgent_request_is_served_between_two_pieces(scheduler_of, num_slots):
    denoiser = Slow(num_free=2, num_slots=num_slots)
    scheduler = scheduler_of(denoiser, LONG)
    chat = scheduler.submit(ChatRequest((), "a", text=TEXT, max_tokens=5))
    assert denoiser.is_waiting.wait(20)
    order, typed = [], scheduler.submit(ask("file:///b.py"))
    typed.add_done_callback(lambda _: order.append(("typed", decoded(denoiser))))
    chat.add_done_callback(lambda _: order.append(("chat", decoded(denoiser))))
    denoiser.allowed.release(1000)
    assert (chat.result(TIMEOUT).text, typed.result(TIMEOUT).text) == ("alpha", "alpha")
    (first, num_first), (second, num_second) = order
    assert (first, second) == ("typed", "chat")
    assert num_first < len(TEXT) < num_second


@pytest.mark.usefixtures("short_pieces")
def test_a_position_without_time_is_finished_in_idle_time_and_then_known(scheduler_of):
    denoiser = Slow(num_free=1)
    scheduler = scheduler_of(denoiser, attrs.evolve(SPECULATING, deadline_ms=60_000))
    request = replace(ask(text=TEXT), deadline_ms=100.0)
    future = scheduler.submit(request)
    assert denoiser.is_waiting.wait(20)
    assert future.result(TIMEOUT).is_unfinished  # though the model is busy with a piece
    denoiser.allowed.release(1000)
    wait_until(lambda: is_idle(scheduler))
    num_steps, num_prefilled = denoiser.num_steps, decoded(denoiser)
    assert num_prefilled <= len(TEXT) + 64
    again = scheduler.submit(replace(request, deadline_ms=None)).result(TIMEOUT)
    assert (again.text, again.is_cached, denoiser.num_steps) == ("alpha", True, num_steps)


@pytest.mark.usefixtures("short_pieces")
@pytest.mark.parametrize("change", [{"speculate": False}, {"type_through": False}])
def test_nothing_is_finished_in_idle_time_where_the_settings_forbid_it(scheduler_of, change):
    denoiser = Slow(num_free=1)
    scheduler = scheduler_of(denoiser, attrs.evolve(SPECULATING, **change))
    future = scheduler.submit(replace(ask(text=TEXT), deadline_ms=100.0))
    assert future.result(TIMEOUT).is_unfinished
    denoiser.allowed.release(1000)
    wait_until(lambda: is_idle(scheduler))
    assert denoiser.num_steps == 0
