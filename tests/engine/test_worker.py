import threading
import time
from concurrent.futures import CancelledError

import pytest

from dg_lsp.backends.scripted import ScriptedDenoiser
from dg_lsp.context.snapshot import Snapshot
from dg_lsp.engine import power
from dg_lsp.engine.engine import Engine
from dg_lsp.engine.request import FillRequest
from dg_lsp.engine.worker import Worker
from dg_lsp.errors import BackendError, ModelBrokenError
from dg_lsp.postprocess.candidate import Reason
from dg_lsp.settings import FillSettings

LONG = FillSettings(deadline_ms=60_000, speculate=False)
TIMEOUT = 30


def ask(uri="file:///a.py", text="a = ", **more):
    return FillRequest(Snapshot(uri, 1, text), len(text), **more)


class Gate(ScriptedDenoiser):
    """Waits inside each step until it is let go on."""

    def __init__(self, fill, **script):
        super().__init__(fill, **script)
        self.is_inside = threading.Event()
        self.go_on = threading.Event()

    def predict(self, *args, **kwargs):
        self.is_inside.set()
        assert self.go_on.wait(TIMEOUT)
        return super().predict(*args, **kwargs)


@pytest.fixture
def worker_of():
    workers = []

    def make(denoiser, settings=LONG, before=lambda: None):
        def open_engine():
            before()
            return Engine(denoiser, denoiser.tokenizer, settings)

        workers.append(Worker(open_engine, settings))
        return workers[-1]

    yield make
    for worker in workers:
        worker.close()


def test_a_request_is_answered(worker_of):
    assert worker_of(ScriptedDenoiser("x")).submit(ask()).result(TIMEOUT).text == "x"


def test_the_engine_is_opened_without_holding_up_the_caller(worker_of):
    opened = threading.Event()
    worker = worker_of(ScriptedDenoiser("x"), before=lambda: opened.wait(TIMEOUT))
    future = worker.submit(ask())
    assert not worker.ready.done()
    opened.set()
    assert future.result(TIMEOUT).text == "x"
    assert worker.ready.result(TIMEOUT).spec.name == "scripted"


def test_a_newer_request_of_the_same_document_cancels_the_one_that_runs(worker_of):
    denoiser = Gate("abcdefgh", tokens_per_step=1)
    worker = worker_of(denoiser)
    stale = worker.submit(ask())
    assert denoiser.is_inside.wait(TIMEOUT)
    newer = worker.submit(ask())
    with pytest.raises(CancelledError):
        stale.result(TIMEOUT)
    denoiser.go_on.set()
    assert newer.result(TIMEOUT).text == "abcdefgh"
    assert denoiser.num_steps == 1 + 9  # the stale one stopped after the step it was in


def test_a_newer_request_replaces_one_that_waits(worker_of):
    denoiser = Gate("x")
    worker = worker_of(denoiser)
    worker.submit(ask("file:///other.py"))
    assert denoiser.is_inside.wait(TIMEOUT)
    waiting = [worker.submit(ask()) for _ in range(5)]
    assert [future.cancelled() for future in waiting] == [True] * 4 + [False]
    denoiser.go_on.set()
    assert waiting[-1].result(TIMEOUT).text == "x"


def test_documents_do_not_cancel_each_other(worker_of):
    denoiser = Gate("x")
    worker = worker_of(denoiser)
    futures = [worker.submit(ask(f"file:///{name}.py")) for name in "abc"]
    denoiser.go_on.set()
    assert [future.result(TIMEOUT).text for future in futures] == ["x"] * 3


def test_cancelling_stops_the_model_within_a_step(worker_of):
    denoiser = Gate("abcdefgh", tokens_per_step=1)
    worker = worker_of(denoiser)
    future = worker.submit(ask())
    assert denoiser.is_inside.wait(TIMEOUT)
    assert future.cancel()
    denoiser.go_on.set()
    assert worker.submit(ask("file:///b.py")).result(TIMEOUT).text == "abcdefgh"
    assert denoiser.num_steps == 1 + 9


def test_the_deadline_covers_waiting_for_the_model(worker_of):
    opened = threading.Event()
    worker = worker_of(ScriptedDenoiser("x"), before=lambda: opened.wait(TIMEOUT))
    result = worker.submit(ask(deadline_ms=20)).result(TIMEOUT)
    assert [rejection.reason for rejection in result.rejections] == [Reason.UNFINISHED]
    opened.set()
    assert worker.submit(ask()).result(TIMEOUT).text == "x"


def test_the_deadline_covers_waiting_for_another_document(worker_of):
    denoiser = Gate("x")
    worker = worker_of(denoiser)
    first = worker.submit(ask("file:///other.py"))
    assert denoiser.is_inside.wait(TIMEOUT)
    result = worker.submit(ask(deadline_ms=20)).result(TIMEOUT)
    assert [rejection.reason for rejection in result.rejections] == [Reason.UNFINISHED]
    denoiser.go_on.set()
    assert first.result(TIMEOUT).text == "x"


def test_the_deadline_covers_waiting_behind_a_request_that_has_not_begun(worker_of):
    opened = threading.Event()
    denoiser = Gate("x")
    worker = worker_of(denoiser, before=lambda: opened.wait(TIMEOUT))
    worker.submit(ask("file:///first.py"))
    result = worker.submit(ask(deadline_ms=20)).result(TIMEOUT)
    assert [rejection.reason for rejection in result.rejections] == [Reason.UNFINISHED]
    opened.set()
    denoiser.go_on.set()


def test_nobody_can_cancel_the_opening_for_the_others(worker_of):
    worker = worker_of(ScriptedDenoiser("x"))
    assert not worker.ready.cancel()
    assert worker.submit(ask()).result(TIMEOUT).text == "x"


def test_closing_does_not_wait_for_a_model_that_is_being_opened():
    opened = threading.Event()

    def open_engine():
        opened.wait(TIMEOUT)
        raise ModelBrokenError("too late")

    worker = Worker(open_engine, LONG)
    future = worker.submit(ask())
    worker.close()
    assert future.cancelled()
    assert not worker.ready.done()
    opened.set()


def test_a_model_that_cannot_be_opened_fails_every_request(worker_of):
    def fail():
        raise ModelBrokenError("cut short")

    worker = worker_of(ScriptedDenoiser("x"), before=fail)
    futures = [worker.submit(ask()), worker.submit(ask("file:///b.py"))]
    for future in (worker.ready, *futures):
        with pytest.raises(ModelBrokenError, match="cut short"):
            future.result(TIMEOUT)


def test_a_request_that_fails_leaves_the_worker_alive(worker_of):
    class Failing(ScriptedDenoiser):
        fails = True

        def predict(self, *args, **kwargs):
            if self.fails:
                raise BackendError("decode failed")
            return super().predict(*args, **kwargs)

    denoiser = Failing("x")
    worker = worker_of(denoiser)
    with pytest.raises(BackendError):
        worker.submit(ask()).result(TIMEOUT)
    denoiser.fails = False
    assert worker.submit(ask()).result(TIMEOUT).text == "x"


def test_closing_cancels_what_waits_and_closes_the_model():
    denoiser = Gate("x")
    worker = Worker(lambda: Engine(denoiser, denoiser.tokenizer, LONG), LONG)
    futures = [worker.submit(ask(f"file:///{name}.py")) for name in "ab"]
    assert denoiser.is_inside.wait(TIMEOUT)
    threading.Timer(0.05, denoiser.go_on.set).start()
    worker.close()
    assert [future.cancelled() for future in futures] == [True, True]
    assert denoiser.is_closed
    assert worker.submit(ask()).cancelled()


def test_many_submissions_from_many_threads_are_each_settled_once(worker_of):
    worker = worker_of(ScriptedDenoiser("x"))
    futures, lock = [], threading.Lock()

    def hammer(number):
        for _ in range(25):
            future = worker.submit(ask(f"file:///{number % 2}.py"))
            with lock:
                futures.append(future)
            time.sleep(0)

    threads = [threading.Thread(target=hammer, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    outcomes = []
    for future in futures:
        try:
            outcomes.append(future.result(TIMEOUT).text)
        except CancelledError:
            outcomes.append(None)
    assert len(outcomes) == 100
    assert outcomes.count("x") >= 2


def test_what_the_user_types_of_a_fill_costs_no_pass(worker_of):
    denoiser = ScriptedDenoiser("alpha(beta)")
    worker = worker_of(denoiser)
    assert worker.submit(ask(text="a = ")).result(TIMEOUT).text == "alpha(beta)"
    num_steps = denoiser.num_steps
    for typed in ("a", "al", "alpha("):
        result = worker.submit(ask(text="a = " + typed)).result(TIMEOUT)
        assert result.text == "alpha(beta)"[len(typed) :]
        assert result.is_cached
    assert denoiser.num_steps == num_steps
    assert not worker.submit(ask(text="a = x")).result(TIMEOUT).is_cached


def test_type_through_can_be_turned_off(worker_of):
    denoiser = ScriptedDenoiser("alpha")
    worker = worker_of(denoiser, FillSettings(deadline_ms=60_000, type_through=False))
    assert not any(worker.submit(ask()).result(TIMEOUT).is_cached for _ in range(2))


def wait_until(is_so):
    end = time.monotonic() + TIMEOUT
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.001)


def fill_of(prefix, _suffix):
    return {"a = ": "one(", "a = one(": "two"}.get(prefix, "")


SPECULATING = FillSettings(deadline_ms=60_000, check_syntax=False)


@pytest.fixture
def mains(monkeypatch):
    monkeypatch.setattr(power.psutil, "sensors_battery", lambda: None, raising=False)


def test_the_fill_after_an_accepted_one_is_there_already(worker_of, mains):
    denoiser = ScriptedDenoiser(fill_of)
    worker = worker_of(denoiser, SPECULATING)
    first = worker.submit(ask(max_lines=1)).result(TIMEOUT)
    accepted = ask(text="a = " + first.text, max_lines=1)
    wait_until(lambda: worker.is_idle)
    num_steps = denoiser.num_steps
    second = worker.submit(accepted).result(TIMEOUT)
    assert second.is_cached
    assert second.text
    assert num_steps > first.steps


def test_a_guess_never_keeps_a_request_waiting_and_a_right_one_goes_on(worker_of, mains):
    denoiser = Gate(fill_of, tokens_per_step=1)
    worker = worker_of(denoiser, SPECULATING)
    denoiser.go_on.set()
    first = worker.submit(ask(max_lines=1))
    text = first.result(TIMEOUT).text
    wait_until(lambda: worker.is_idle)
    denoiser.go_on.clear()
    denoiser.is_inside.clear()
    other = worker.submit(ask(uri="file:///b.py", max_lines=1))
    assert denoiser.is_inside.wait(TIMEOUT)
    denoiser.go_on.set()
    assert other.result(TIMEOUT).text == text


def test_nothing_is_guessed_on_a_battery(worker_of, monkeypatch):
    from types import SimpleNamespace

    monkeypatch.setattr(power.psutil, "sensors_battery", lambda: SimpleNamespace(power_plugged=False), raising=False)
    denoiser = ScriptedDenoiser(fill_of)
    worker = worker_of(denoiser, SPECULATING)
    first = worker.submit(ask(max_lines=1)).result(TIMEOUT)
    wait_until(lambda: worker.is_idle)
    assert denoiser.num_steps == first.steps
