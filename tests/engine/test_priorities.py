"""Who goes first, who comes back afterwards, and a model that is given up while nobody wants it."""

import threading
import time
from concurrent.futures import CancelledError, Future

import pytest
from dg_lsp.engine.request_queue import ActiveRun, Job, RequestQueue
from workers import LONG, TIMEOUT, Gate, Stepping, ask

from dg_lsp.backends.scripted import ScriptedDenoiser
from dg_lsp.context.document import Snapshot
from dg_lsp.engine.engine import Engine
from dg_lsp.engine.request import Priority, RewriteRequest
from dg_lsp.engine.scheduler import Scheduler
from dg_lsp.errors import ModelMemoryError

TEXT = "a = old_value_here\n"
NEW = "new_value_that_is_long"


def rewrite(uri="file:///long.py"):
    return RewriteRequest(Snapshot(uri, 1, TEXT), 4, len(TEXT) - 1)


def script(prefix, suffix):
    """A long text where something is rewritten, a short one where something is typed."""
    return NEW if prefix.endswith("a = ") and suffix == "\n" else "short"


def gate(**more):
    return Gate(script, tokens_per_step=1, **more)


@pytest.fixture
def ended():
    """The futures' names in the order in which they end."""
    names = []

    def note(**futures):
        for name, future in futures.items():
            future.add_done_callback(lambda _, name=name: names.append(name))

    note.names = names
    return note


def wait_until(is_so):
    end = time.monotonic() + TIMEOUT
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.001)


@pytest.mark.parametrize("num_slots", [1, 4])
def test_nobody_who_types_waits_for_a_rewrite_which_goes_on_afterwards(worker_of, ended, num_slots):
    denoiser = gate(num_slots=num_slots)
    worker = worker_of(denoiser)
    rewritten = worker.submit_rewrite(rewrite())
    assert denoiser.is_inside.wait(TIMEOUT)
    typed = worker.submit(ask())
    ended(rewritten=rewritten, typed=typed)
    denoiser.go_on.set()
    assert rewritten.result(TIMEOUT).text == NEW
    assert typed.result(TIMEOUT).text == "short"
    wait_until(lambda: len(ended.names) == 2)
    assert ended.names == ["typed", "rewritten"]
    assert denoiser.num_steps == len(NEW) + 1 + len("short") + 1  # nothing was done twice


def test_who_waits_is_served_by_urgency_and_then_as_they_came(worker_of, ended):
    denoiser = gate()
    worker = worker_of(denoiser)
    worker.submit(ask("file:///first.py"))
    assert denoiser.is_inside.wait(TIMEOUT)
    ended(
        warm_up=worker.submit(ask("file:///0.py", priority=Priority.WARM_UP)),
        rewrite=worker.submit_rewrite(rewrite()),
        invoked=worker.submit(ask("file:///1.py", priority=Priority.INVOKED)),
        typed=worker.submit(ask("file:///2.py")),
        typed_later=worker.submit(ask("file:///3.py")),
    )
    denoiser.go_on.set()
    wait_until(lambda: len(ended.names) == 5)
    assert ended.names == ["typed", "typed_later", "invoked", "rewrite", "warm_up"]


def test_one_that_is_as_urgent_does_not_interrupt(worker_of, ended):
    denoiser = gate()
    worker = worker_of(denoiser)
    first = worker.submit(ask("file:///1.py"))
    assert denoiser.is_inside.wait(TIMEOUT)
    second = worker.submit(ask("file:///2.py"))
    ended(second=second, first=first)
    denoiser.go_on.set()
    second.result(TIMEOUT)
    wait_until(lambda: len(ended.names) == 2)
    assert ended.names == ["first", "second"]


def test_one_that_was_interrupted_can_be_cancelled(worker_of):
    denoiser = gate()
    worker = worker_of(denoiser)
    stale = worker.submit_rewrite(rewrite())
    assert denoiser.is_inside.wait(TIMEOUT)
    typed = worker.submit(ask())
    newer = worker.submit_rewrite(rewrite())
    with pytest.raises(CancelledError):
        stale.result(TIMEOUT)
    denoiser.go_on.set()
    assert typed.result(TIMEOUT).text == "short"
    assert newer.result(TIMEOUT).text == NEW
    assert denoiser.num_steps == 1 + len("short") + 1 + len(NEW) + 1


def test_one_that_was_interrupted_ends_when_it_is_cancelled_while_the_other_runs():
    ended = threading.Event()

    class Noting(Engine):
        def rewrite(self, request, **more):
            try:
                return (yield from super().rewrite(request, **more))
            finally:
                ended.set()

    denoiser = Stepping(script, tokens_per_step=1)
    worker = Scheduler(lambda: Noting(denoiser, denoiser.tokenizer, LONG), LONG)
    stepped = threading.Semaphore(0)
    rewritten = worker.submit_rewrite(rewrite(), lambda _: stepped.release())
    denoiser.allowed.release()
    assert stepped.acquire(timeout=TIMEOUT)
    typed = worker.submit(ask(), lambda _: stepped.release())
    denoiser.allowed.release(2)  # the rewrite may have begun its second
    assert stepped.acquire(timeout=TIMEOUT)
    assert stepped.acquire(timeout=TIMEOUT)
    rewritten.cancel()
    denoiser.allowed.release()
    assert ended.wait(TIMEOUT)
    assert not typed.done()
    denoiser.allowed.release(20)
    assert typed.result(TIMEOUT).text == "short"
    worker.close()


def test_one_that_was_interrupted_is_cancelled_when_the_worker_closes(worker_of):
    denoiser = gate()
    worker = worker_of(denoiser)
    rewritten = worker.submit_rewrite(rewrite())
    assert denoiser.is_inside.wait(TIMEOUT)
    typed = worker.submit(ask())
    denoiser.is_inside.clear()
    denoiser.go_on.set()
    typed.result(TIMEOUT)
    denoiser.go_on.clear()
    worker.submit(ask("file:///b.py"))
    assert denoiser.is_inside.wait(TIMEOUT)
    denoiser.go_on.set()
    worker.close()
    assert rewritten.done()
    assert denoiser.is_closed


def test_a_model_that_nobody_wants_is_given_up_and_opened_again(worker_of):
    opened = []
    denoiser = ScriptedDenoiser("x")
    worker = worker_of(denoiser, before=lambda: opened.append(1), idle_seconds=0.01)
    assert worker.submit(ask()).result(TIMEOUT).text == "x"
    wait_until(lambda: worker.is_asleep)
    wait_until(lambda: denoiser.is_closed)
    num_opened = len(opened)  # on a busy machine it may have slept before the first request too
    assert worker.ready.result().spec.name == "scripted"  # what was known of it is known still
    assert worker.submit(ask("file:///b.py")).result(TIMEOUT).text == "x"
    assert len(opened) == num_opened + 1


def test_one_that_is_kept_is_never_asleep(worker_of):
    worker = worker_of(ScriptedDenoiser("x"))
    worker.submit(ask()).result(TIMEOUT)
    assert not worker.is_asleep


def test_who_cannot_have_it_opened_again_hears_why_and_the_next_one_may(worker_of):
    troubles = []

    def before():
        if troubles:
            raise troubles.pop()

    worker = worker_of(ScriptedDenoiser("x"), before=before, idle_seconds=0.01)
    assert worker.submit(ask()).result(TIMEOUT).text == "x"
    wait_until(lambda: worker.is_asleep)
    troubles.append(ModelMemoryError("no room"))
    with pytest.raises(ModelMemoryError, match="no room"):
        worker.submit(ask("file:///b.py")).result(TIMEOUT)
    assert worker.submit(ask("file:///c.py")).result(TIMEOUT).text == "x"


def test_the_deadline_covers_opening_it_again(worker_of):
    gate_open = threading.Event()
    gate_open.set()
    worker = worker_of(ScriptedDenoiser("x"), before=lambda: gate_open.wait(TIMEOUT), idle_seconds=0.01)
    worker.submit(ask()).result(TIMEOUT)
    wait_until(lambda: worker.is_asleep)
    gate_open.clear()
    assert not worker.submit(ask("file:///b.py", deadline_ms=20)).result(TIMEOUT).candidates
    gate_open.set()
    assert worker.submit(ask("file:///c.py")).result(TIMEOUT).text == "x"


def test_an_overdue_one_that_was_interrupted_says_at_once_what_it_has():
    def steps():
        yield

    agenda = RequestQueue()
    late = ActiveRun(Job(ask("file:///late.py", priority=Priority.WARM_UP), time.monotonic() - 1, Future()), steps())
    early = ActiveRun(Job(ask("file:///early.py", priority=Priority.WARM_UP), time.monotonic() + 60, Future()), steps())
    typed = Job(ask(), time.monotonic() + 60, Future())
    agenda.pause(early)
    agenda.pause(late)
    agenda.add(typed)
    assert agenda.outranks(early.job)
    assert not agenda.outranks(late.job)
    assert [agenda.pop() for _ in range(3)] == [late, typed, early]
    assert not agenda
