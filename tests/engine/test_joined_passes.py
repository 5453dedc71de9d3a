"""Requests that decode side by side, several tokens in one causal pass of the model."""

import threading
from dataclasses import replace

import pytest
from gates import LONG, TIMEOUT, ask, wait_until

from dg_lsp.backends.scripted import MASK_SPEC, ScriptedDenoiser
from dg_lsp.canvas.spec import DecoderName, PromptCut
from dg_lsp.engine.decoder_selection import StepCosts
from dg_lsp.engine.engine import LocalEngine
from dg_lsp.engine.request import Priority
from dg_lsp.engine.scheduler import Scheduler
from dg_lsp.errors import BackendError, RequestError

CAUSAL = {"decoder": DecoderName.AUTOREGRESSIVE, "max_lines": 1}
CHEAP = StepCosts(causal=((1, 1.0),), joined=1.0)
FILLS = {"a = ": "first(1)", "b = ": "second(2)", "c = ": "third(3)"}
LINES = {before[0]: before + fill for before, fill in FILLS.items()}


class Recorder(ScriptedDenoiser):
    """Waits inside its first causal pass until `go_on` is set, and records the slots of joined passes."""

    def __init__(self, **script):
        super().__init__(lambda prefix, _suffix: LINES.get(prefix[:1], "")[len(prefix) :], **script)
        self.is_inside, self.go_on = threading.Event(), threading.Event()
        self.joined = []
        self.on_joined = lambda: None

    def extend(self, slot, ids, allowed=None):
        self.is_inside.set()
        assert self.go_on.wait(TIMEOUT)
        return super().extend(slot, ids, allowed)

    def extend_together(self, passes):
        self.joined.append([each.slot for each in passes])
        self.on_joined()
        return super().extend_together(passes)


@pytest.fixture
def side_by_side():
    """Submits requests while the first one is inside its first pass; returns (denoiser, futures)."""
    schedulers = []

    def make(*requests, costs=CHEAP, prepare=lambda _denoiser, _futures: None, **script):
        denoiser = Recorder(**script)
        scheduler = Scheduler(lambda: LocalEngine(denoiser, denoiser.tokenizer, LONG, costs), LONG)
        schedulers.append(scheduler)
        futures = [scheduler.submit(requests[0])]
        assert denoiser.is_inside.wait(TIMEOUT)
        futures += [scheduler.submit(request) for request in requests[1:]]
        prepare(denoiser, futures)
        denoiser.go_on.set()
        return denoiser, futures

    yield make
    for scheduler in schedulers:
        scheduler.close()


def asked(text, **options):
    return ask(f"file:///{text[0]}.py", text, **{**CAUSAL, **options})


def texts_of(futures):
    return [future.result(TIMEOUT).text for future in futures]


def test_requests_of_one_priority_share_causal_passes_and_get_their_own_texts(side_by_side):
    denoiser, futures = side_by_side(*map(asked, FILLS))
    assert texts_of(futures) == list(FILLS.values())
    assert denoiser.num_steps < sum(len(text) + 1 for text in FILLS.values()) / 2 + 3
    assert max(map(len, denoiser.joined)) == 3
    assert all(len({*slots}) == len(slots) for slots in denoiser.joined)


def test_requests_run_one_after_the_other_where_a_joined_pass_does_not_pay(side_by_side):
    denoiser, futures = side_by_side(*map(asked, FILLS), costs=replace(CHEAP, joined=1.6))
    assert texts_of(futures) == list(FILLS.values())
    assert not denoiser.joined


@pytest.mark.parametrize(
    "beside",
    [
        pytest.param({"priority": Priority.INVOKED}, id="a less urgent request"),
        pytest.param({"decoder": DecoderName.DIFFUSION}, id="a request that denoises a canvas"),
    ],
)
def test_request_that_cannot_share_passes_waits_for_the_other_one(side_by_side, beside):
    ended = []

    def record_ends(_denoiser, futures):
        for number, future in enumerate(futures):
            future.add_done_callback(lambda _, number=number: ended.append(number))

    denoiser, futures = side_by_side(asked("a = "), asked("b = ", **beside), prepare=record_ends)
    assert texts_of(futures) == ["first(1)", "second(2)"]
    assert not denoiser.joined
    wait_until(lambda: len(ended) == 2, "both have ended")
    assert ended == [0, 1]


def test_request_that_is_cancelled_inside_a_joined_pass_stops_and_the_other_one_goes_on(side_by_side):
    def cancel_in_second_pass(denoiser, futures):
        denoiser.on_joined = lambda: len(denoiser.joined) == 2 and futures[0].cancel()

    denoiser, futures = side_by_side(asked("a = "), asked("b = "), prepare=cancel_in_second_pass)
    assert texts_of(futures[1:]) == ["second(2)"]
    assert futures[0].cancelled()
    assert len(denoiser.joined) == 2


@pytest.mark.parametrize("error", [RequestError("no room"), BackendError("broken")])
def test_requests_that_fail_together_are_decoded_one_after_the_other(side_by_side, error):
    def fail():
        raise error

    denoiser, futures = side_by_side(
        asked("a = "), asked("b = "), prepare=lambda denoiser, _: setattr(denoiser, "on_joined", fail)
    )
    assert texts_of(futures) == ["first(1)", "second(2)"]
    assert len(denoiser.joined) == 1


def test_request_with_one_slot_for_all_runs_alone(side_by_side):
    denoiser, futures = side_by_side(asked("a = "), asked("b = "), num_slots=1)
    assert texts_of(futures) == ["first(1)", "second(2)"]
    assert not denoiser.joined


def test_tokens_up_to_the_cursor_are_spelled_in_joined_passes_too(side_by_side):
    spec = replace(MASK_SPEC, fim=replace(MASK_SPEC.fim, cut=PromptCut.TOKEN))
    denoiser, futures = side_by_side(asked("a = "), asked("b = "), spec=spec)
    assert texts_of(futures) == ["first(1)", "second(2)"]
    assert denoiser.joined
