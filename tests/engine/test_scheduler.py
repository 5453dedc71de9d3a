"""Requests from opening the model to closing it: replacement, cancellation, deadlines and failures."""

import sys
from concurrent.futures import CancelledError

import pytest
from gates import LONG, TIMEOUT, Gate, ask, wait_until

from dg_lsp.backends.scripted import ScriptedDenoiser
from dg_lsp.engine.completion_cache import CompletionCache
from dg_lsp.engine.engine import LocalEngine
from dg_lsp.engine.request import RewriteRequest
from dg_lsp.engine.resident_models import SchedulerSession
from dg_lsp.engine.scheduler import RequestQueue, Scheduler, SharedDevice
from dg_lsp.errors import BackendError, ModelBrokenError
from dg_lsp.settings import MAX_SECONDS


def test_newer_request_of_a_document_cancels_the_running_one_within_a_step(busy):
    scheduler, denoiser, stale = busy("abcdefgh", ask())
    newer = scheduler.submit(ask())
    with pytest.raises(CancelledError):
        stale.result(TIMEOUT)
    denoiser.go_on.set()
    assert newer.result(TIMEOUT).text == "abcdefgh"
    assert denoiser.num_steps == 1 + 9
    wait_until(lambda: scheduler.model_time.total > scheduler.model_time.stale > 0, "model time is counted")


def test_model_that_cannot_be_opened_fails_every_request(scheduler_of):
    opened = []

    def fail():
        opened.append(1)
        raise ModelBrokenError("cut short")

    scheduler = scheduler_of(ScriptedDenoiser("x"), before=fail)
    futures = [scheduler.submit(ask()), scheduler.submit(ask("file:///b.py"))]
    for future in (scheduler.ready, *futures):
        with pytest.raises(ModelBrokenError, match="cut short"):
            future.result(TIMEOUT)
    assert len(opened) == 1


def test_closing_cancels_all_requests_and_closes_the_model():
    denoiser = Gate("x")
    scheduler = Scheduler(lambda: LocalEngine(denoiser, denoiser.tokenizer, LONG), LONG)
    futures = [scheduler.submit(ask(f"file:///{name}.py")) for name in "ab"]
    assert denoiser.is_inside.wait(TIMEOUT)
    futures[0].add_done_callback(lambda _: denoiser.go_on.set())
    scheduler.close()
    assert [future.cancelled() for future in futures] == [True, True]
    assert denoiser.is_closed
    assert scheduler.submit(ask()).cancelled()


def test_sessions_never_cancel_or_read_each_others_requests(scheduler_of):
    denoiser, closed = Gate("abc"), []
    scheduler = scheduler_of(denoiser)
    first, second = (SchedulerSession(scheduler, LONG, lambda n=n: closed.append(n)) for n in (1, 2))
    futures = [first.submit(ask()), second.submit(ask())]
    denoiser.go_on.set()
    results = [future.result(TIMEOUT) for future in futures]
    assert [(result.text, result.is_cached) for result in results] == [("abc", False)] * 2
    assert first.submit(ask(text="a = a")).result(TIMEOUT).is_cached
    denoiser.go_on.clear()
    pending = second.submit(ask("file:///b.py"))
    second.close()
    second.close()
    assert pending.cancelled()
    assert closed == [2]
    denoiser.go_on.set()
    assert first.submit(ask("file:///c.py")).result(TIMEOUT).text == "abc"


class BadEnd(ScriptedDenoiser):
    """Cannot be closed."""

    def close(self):
        super().close()
        raise ZeroDivisionError("hunter2")


@pytest.mark.parametrize("idle_seconds", [sys.float_info.min, 0.01, MAX_SECONDS, sys.float_info.max])
def test_any_idle_time_and_a_failure_to_close_the_model_leave_its_thread_alive(scheduler_of, capfd, idle_seconds):
    opened = []
    scheduler = scheduler_of(BadEnd("x"), before=lambda: opened.append(1), idle_seconds=idle_seconds)
    for number in range(3):
        if idle_seconds < 1:
            wait_until(lambda: scheduler.is_asleep, "the model is not closed")
        assert scheduler.submit(ask(f"file:///{number}.py")).result(TIMEOUT).text == "x"
    assert len(opened) == (4 if idle_seconds < 1 else 1)
    errors = capfd.readouterr().err
    assert errors.startswith("dg-lsp: ZeroDivisionError in the model thread") == (idle_seconds < 1)
    assert "hunter2" not in errors


def test_a_failure_to_close_the_model_after_its_last_request_is_reported(capfd):
    class BadGate(BadEnd, Gate):
        pass

    denoiser = BadGate("x")
    scheduler = Scheduler(lambda: LocalEngine(denoiser, denoiser.tokenizer, LONG), LONG)
    running = scheduler.submit(ask())
    assert denoiser.is_inside.wait(TIMEOUT)
    running.add_done_callback(lambda _: denoiser.go_on.set())
    scheduler.close()
    assert denoiser.is_closed
    assert "ZeroDivisionError in the model thread" in capfd.readouterr().err


@pytest.mark.parametrize(("kind", "name"), [(CompletionCache, "keep"), (RequestQueue, "pop_done")])
def test_an_error_of_our_own_ends_neither_the_model_thread_nor_its_requests(
    scheduler_of, capfd, monkeypatch, kind, name
):
    method, errors = getattr(kind, name), [ZeroDivisionError]

    def fail_once(*args):
        if errors:
            raise errors.pop()
        return method(*args)

    scheduler = scheduler_of(ScriptedDenoiser("x"))
    monkeypatch.setattr(kind, name, fail_once)
    first = scheduler.submit(ask())
    wait_until(lambda: "ZeroDivisionError in the model thread" in capfd.readouterr().err)
    assert first.done()
    assert scheduler.submit(ask("file:///b.py")).result(TIMEOUT).text == "x"


def test_a_model_that_is_closed_while_another_one_is_opened_is_not_opened():
    device, opened = SharedDevice(), []
    with device.opening:
        scheduler = Scheduler(lambda: opened.append(1), LONG, device=device)
        request = scheduler.submit(RewriteRequest(ask().snapshot, 0, 1))
        scheduler.close()
    assert request.cancelled()
    with pytest.raises(BackendError, match="closed before it was opened"):
        scheduler.ready.result(TIMEOUT)
    assert opened == []
