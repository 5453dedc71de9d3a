import threading
import time
from concurrent.futures import CancelledError

import attrs
import pytest
from workers import LONG, TIMEOUT, Gate, ask

from dg_lsp.backends.scripted import ScriptedDenoiser
from dg_lsp.engine.engine import Engine
from dg_lsp.engine.scheduler import Scheduler
from dg_lsp.errors import BackendError, ModelBrokenError
from dg_lsp.postprocess.validate import Reason


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

    worker = Scheduler(open_engine, LONG)
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
    worker = Scheduler(lambda: Engine(denoiser, denoiser.tokenizer, LONG), LONG)
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


def test_several_share_a_model_each_with_settings_of_their_own(worker_of):
    """What one turns off, another keeps; no fill of one is remembered for the other."""
    denoiser = ScriptedDenoiser("1 2")
    worker = worker_of(denoiser)
    strict, lax = (attrs.evolve(LONG, check_syntax=is_on, type_through=False) for is_on in (True, False))
    for _ in range(3):
        refused = worker.submit(ask("file:///a.py?client=1"), settings=strict).result(TIMEOUT)
        assert [one.reason for one in refused.rejections] == [Reason.SYNTAX_ERROR]
        taken = worker.submit(ask("file:///b.py?client=2", text="something_else = "), settings=lax).result(TIMEOUT)
        assert taken.text == "1 2"
    assert denoiser.num_prefilled == refused.prompt_tokens + taken.prompt_tokens, "each has kept its slot"
