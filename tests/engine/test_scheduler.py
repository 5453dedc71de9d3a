"""Requests from opening the model to closing it: priorities, replacement, cancellation, deadlines and failures."""

import sys
import threading
import time
from concurrent.futures import CancelledError
from unittest.mock import Mock

import pytest
from gates import TIMEOUT, ask, wait_until
from scripted import ScriptedDenoiser, engine_for

from dg_lsp.context.document import Snapshot
from dg_lsp.engine.completion_cache import CompletionCache
from dg_lsp.engine.request import Priority, RewriteRequest
from dg_lsp.engine.scheduler import Scheduler, SharedDevice
from dg_lsp.errors import BackendError, ModelMemoryError
from dg_lsp.settings import MAX_SECONDS, CompletionSettings, Settings

TEXT = "a = old_value_here\n"
NEW = "new_value_that_is_long"
REWRITE = RewriteRequest(Snapshot("file:///long.py", TEXT), 4, len(TEXT) - 1)


def script(prefix, suffix):
    """A long text for the rewrite, a short one for completions."""
    return NEW if prefix.endswith("a = ") and suffix == "\n" else "short"


def order_of_ends(**futures):
    """A list that receives the names of the futures as they end."""
    names = []
    for name, future in futures.items():
        future.add_done_callback(lambda _, name=name: names.append(name))
    return names


@pytest.mark.parametrize("num_slots", [1, 4])
def test_typing_interrupts_a_rewrite_which_continues_afterwards(busy, num_slots):
    scheduler, denoiser, rewritten = busy(script, REWRITE, num_slots=num_slots)
    typed = scheduler.submit(ask())
    ended = order_of_ends(rewritten=rewritten, typed=typed)
    denoiser.go_on.set()
    assert rewritten.result(TIMEOUT).text == NEW
    assert typed.result(TIMEOUT).text == "short"
    wait_until(lambda: len(ended) == 2)
    assert ended == ["typed", "rewritten"]
    assert denoiser.num_steps == len(NEW) + 1 + len("short") + 1  # no pass is repeated


def test_waiting_requests_run_by_priority_and_then_in_order_of_arrival(busy):
    scheduler, denoiser, _ = busy(script, ask("file:///first.py"))
    ended = order_of_ends(
        warm_up=scheduler.submit(ask("file:///0.py", priority=Priority.WARM_UP)),
        rewrite=scheduler.submit(REWRITE),
        invoked=scheduler.submit(ask("file:///1.py", priority=Priority.INVOKED)),
        typed=scheduler.submit(ask("file:///2.py")),
        typed_later=scheduler.submit(ask("file:///3.py")),
    )
    denoiser.go_on.set()
    wait_until(lambda: len(ended) == 5)
    assert ended == ["typed", "typed_later", "invoked", "rewrite", "warm_up"]


def test_newer_request_of_a_document_cancels_a_running_and_an_interrupted_one(busy):
    scheduler, denoiser, stale = busy(script, REWRITE)
    typed = scheduler.submit(ask(text="b = "))
    newer = scheduler.submit(REWRITE)
    newest = scheduler.submit(ask())
    for cancelled in (stale, typed):
        with pytest.raises(CancelledError):
            cancelled.result(TIMEOUT)
    denoiser.go_on.set()
    assert newest.result(TIMEOUT).text == "short"
    assert newer.result(TIMEOUT).text == NEW
    assert denoiser.num_steps == 1 + len("short") + 1 + len(NEW) + 1
    wait_until(lambda: scheduler.model_time.total > scheduler.model_time.stale > 0, "model time is counted")


def test_failure_to_open_again_is_one_requests_error_only(scheduler_of):
    errors = []

    def before():
        if errors:
            raise errors.pop()

    scheduler = scheduler_of(ScriptedDenoiser("x"), before=before, idle_seconds=0.01)
    assert scheduler.submit(ask()).result(TIMEOUT).text == "x"
    wait_until(lambda: scheduler.is_asleep)
    with scheduler._changed:  # the model's thread waits
        scheduler.warm_up(ask(), CompletionSettings(speculate=True))
        assert not scheduler._queue, "a move of the cursor does not open the model again"
    errors.append(ModelMemoryError("no room"))
    with pytest.raises(ModelMemoryError, match="no room"):
        scheduler.submit(ask("file:///b.py")).result(TIMEOUT)
    assert scheduler.submit(ask("file:///c.py")).result(TIMEOUT).text == "x"


def test_the_error_of_a_model_that_cannot_be_opened_keeps_no_buffer_in_memory(scheduler_of):
    scheduler = scheduler_of(ScriptedDenoiser("x"), before=Mock(side_effect=ModelMemoryError("no room")))
    error = scheduler.submit(ask()).exception(TIMEOUT)
    assert error is scheduler.ready.exception()
    assert error.__traceback__ is None


def test_a_model_that_is_closed_while_it_opens_is_freed_before_another_one_is_opened():
    events = []
    is_opening, may_go_on = threading.Event(), threading.Event()
    slow, other = ScriptedDenoiser("x"), ScriptedDenoiser("x")
    slow.close = lambda: (time.sleep(0.1), events.append("closed"))

    def open_slowly(_settings):
        is_opening.set()
        assert may_go_on.wait(TIMEOUT)
        return engine_for(slow)

    device = SharedDevice()
    first = Scheduler(open_slowly, Settings(), device)
    assert is_opening.wait(TIMEOUT)
    first.close()
    second = Scheduler(lambda _: events.append("opened") or engine_for(other), Settings(), device)
    may_go_on.set()
    assert second.ready.result(TIMEOUT)
    assert events == ["closed", "opened"]
    second.close()


@pytest.mark.parametrize("idle_seconds", [sys.float_info.min, 0.01, MAX_SECONDS])
def test_any_idle_time_and_a_failure_to_close_the_model_leave_its_thread_alive(scheduler_of, capfd, idle_seconds):
    opened = []
    denoiser = ScriptedDenoiser("x")
    denoiser.close = Mock(side_effect=ZeroDivisionError("hunter2"))
    scheduler = scheduler_of(denoiser, before=lambda: opened.append(1), idle_seconds=idle_seconds)
    for number in range(3):
        if idle_seconds < 1:
            wait_until(lambda: scheduler.is_asleep, "the model is not closed")
        assert scheduler.submit(ask(f"file:///{number}.py")).result(TIMEOUT).text == "x"
    assert len(opened) == (4 if idle_seconds < 1 else 1)
    errors = capfd.readouterr().err
    assert errors.startswith("dg-lsp: ZeroDivisionError in the model thread") == (idle_seconds < 1)
    assert "hunter2" not in errors


@pytest.mark.parametrize(("kind", "name"), [(CompletionCache, "keep"), (Scheduler, "_close_done")])
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
        scheduler = Scheduler(opened.append, Settings(), device)
        request = scheduler.submit(RewriteRequest(ask().snapshot, 0, 1))
        scheduler.close()
    assert request.cancelled()
    with pytest.raises(BackendError, match="closed before it was opened"):
        scheduler.ready.result(TIMEOUT)
    assert opened == []
