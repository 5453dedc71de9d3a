"""Requests from opening the model to closing it: replacement, cancellation, deadlines and failures."""

from concurrent.futures import CancelledError

import pytest
from gates import LONG, TIMEOUT, Gate, ask, wait_until

from dg_lsp.backends.scripted import ScriptedDenoiser
from dg_lsp.engine.engine import LocalEngine
from dg_lsp.engine.resident_models import SchedulerSession
from dg_lsp.engine.scheduler import Scheduler
from dg_lsp.errors import ModelBrokenError


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
