"""Urgent requests interrupt others, which continue afterwards; and a model that is closed while it is not needed."""

import threading
import time
from concurrent.futures import CancelledError

import pytest
from gates import LONG, TIMEOUT, Stepping, ask, wait_until

from dg_lsp.backends.scripted import ScriptedDenoiser
from dg_lsp.context.document import Snapshot
from dg_lsp.engine.engine import LocalEngine
from dg_lsp.engine.request import Priority, RewriteRequest
from dg_lsp.engine.scheduler import Job, RequestQueue, Scheduler
from dg_lsp.errors import ModelMemoryError

TEXT = "a = old_value_here\n"
NEW = "new_value_that_is_long"


def rewrite(uri="file:///long.py"):
    return RewriteRequest(Snapshot(uri, 1, TEXT), 4, len(TEXT) - 1)


def script(prefix, suffix):
    """A long text for the rewrite, a short one for completions."""
    return NEW if prefix.endswith("a = ") and suffix == "\n" else "short"


@pytest.fixture
def ended():
    """The names of futures in the order in which they end."""
    names = []

    def note(**futures):
        for name, future in futures.items():
            future.add_done_callback(lambda _, name=name: names.append(name))

    note.names = names
    return note


@pytest.mark.parametrize("num_slots", [1, 4])
def test_typing_interrupts_a_rewrite_which_continues_afterwards(busy, ended, num_slots):
    scheduler, denoiser, rewritten = busy(script, rewrite(), num_slots=num_slots)
    typed = scheduler.submit(ask())
    ended(rewritten=rewritten, typed=typed)
    denoiser.go_on.set()
    assert rewritten.result(TIMEOUT).text == NEW
    assert typed.result(TIMEOUT).text == "short"
    wait_until(lambda: len(ended.names) == 2)
    assert ended.names == ["typed", "rewritten"]
    assert denoiser.num_steps == len(NEW) + 1 + len("short") + 1  # no pass is repeated


def test_waiting_requests_run_by_priority_and_then_in_order_of_arrival(busy, ended):
    scheduler, denoiser, _ = busy(script, ask("file:///first.py"))
    ended(
        warm_up=scheduler.submit(ask("file:///0.py", priority=Priority.WARM_UP)),
        rewrite=scheduler.submit(rewrite()),
        invoked=scheduler.submit(ask("file:///1.py", priority=Priority.INVOKED)),
        typed=scheduler.submit(ask("file:///2.py")),
        typed_later=scheduler.submit(ask("file:///3.py")),
    )
    denoiser.go_on.set()
    wait_until(lambda: len(ended.names) == 5)
    assert ended.names == ["typed", "typed_later", "invoked", "rewrite", "warm_up"]


def test_request_of_the_same_priority_does_not_interrupt(busy, ended):
    scheduler, denoiser, first = busy(script, ask("file:///1.py"))
    ended(second=scheduler.submit(ask("file:///2.py")), first=first)
    denoiser.go_on.set()
    wait_until(lambda: len(ended.names) == 2)
    assert ended.names == ["first", "second"]


def test_newer_rewrite_cancels_an_interrupted_one(busy):
    scheduler, denoiser, stale = busy(script, rewrite())
    typed = scheduler.submit(ask())
    newer = scheduler.submit(rewrite())
    with pytest.raises(CancelledError):
        stale.result(TIMEOUT)
    denoiser.go_on.set()
    assert typed.result(TIMEOUT).text == "short"
    assert newer.result(TIMEOUT).text == NEW
    assert denoiser.num_steps == 1 + len("short") + 1 + len(NEW) + 1


def test_interrupted_run_ends_when_it_is_cancelled_while_the_other_runs():
    ended = threading.Event()

    class Noting(LocalEngine):
        def rewrite(self, request, **more):
            try:
                return (yield from super().rewrite(request, **more))
            finally:
                ended.set()

    denoiser = Stepping(script, tokens_per_step=1)
    scheduler = Scheduler(lambda: Noting(denoiser, denoiser.tokenizer, LONG), LONG)
    stepped = threading.Semaphore(0)
    rewritten = scheduler.submit(rewrite(), lambda _: stepped.release())
    denoiser.allowed.release()
    assert stepped.acquire(timeout=TIMEOUT)
    typed = scheduler.submit(ask(), lambda _: stepped.release())
    denoiser.allowed.release(2)  # the rewrite may have begun its second
    assert stepped.acquire(timeout=TIMEOUT)
    assert stepped.acquire(timeout=TIMEOUT)
    rewritten.cancel()
    denoiser.allowed.release()
    assert ended.wait(TIMEOUT)
    assert not typed.done()
    denoiser.allowed.release(20)
    assert typed.result(TIMEOUT).text == "short"
    scheduler.close()


def test_overdue_interrupted_run_comes_first_to_return_what_it_has():
    def steps():
        yield

    queue, now = RequestQueue(), time.monotonic()
    late = Job(ask("file:///late.py", priority=Priority.WARM_UP), LONG, arrival=now - 61, steps=steps())
    early = Job(ask("file:///early.py", priority=Priority.WARM_UP), LONG, steps=steps())
    typed = Job(ask(), LONG)
    for job in (early, late, typed):
        queue.add(job)
    assert queue.outranks(early)
    assert not queue.outranks(late)
    assert queue.clear() == [early, late, typed]
    queue.add(typed)
    assert [queue.pop() for _ in range(3)] == [late, typed, early], "the model thread still closes interrupted ones"
    assert not queue


def test_failure_to_open_again_is_one_requests_error_only(scheduler_of):
    errors = []

    def before():
        if errors:
            raise errors.pop()

    scheduler = scheduler_of(ScriptedDenoiser("x"), before=before, idle_seconds=0.01)
    assert scheduler.submit(ask()).result(TIMEOUT).text == "x"
    wait_until(lambda: scheduler.is_asleep)
    errors.append(ModelMemoryError("no room"))
    with pytest.raises(ModelMemoryError, match="no room"):
        scheduler.submit(ask("file:///b.py")).result(TIMEOUT)
    assert scheduler.submit(ask("file:///c.py")).result(TIMEOUT).text == "x"
