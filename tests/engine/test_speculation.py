import time
from types import SimpleNamespace

import pytest
from workers import TIMEOUT, Gate, Stepping, ask

from dg_lsp.backends.scripted import ScriptedDenoiser
from dg_lsp.engine import scheduler
from dg_lsp.settings import FillSettings


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
    monkeypatch.setattr(scheduler.psutil, "sensors_battery", lambda: None, raising=False)


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


def test_who_asks_for_what_is_being_guessed_gets_it_and_may_watch(worker_of, mains):
    denoiser = Stepping(fill_of, tokens_per_step=1)
    worker = worker_of(denoiser, SPECULATING)
    denoiser.allowed.release(len("one(") + 2)  # the fill with its end, and the guess's first step
    assert worker.submit(ask(max_lines=1)).result(TIMEOUT).text == "one("
    wait_until(lambda: denoiser.num_steps == len("one(") + 2)
    seen = []
    asked = worker.submit(ask(text="a = one(", max_lines=1), seen.append)
    denoiser.allowed.release(20)
    assert asked.result(TIMEOUT).text == "two"
    assert denoiser.num_steps >= len("one(") + 1 + len("two") + 1
    assert [progress.number for progress in seen][-1] == len("two") + 1
    assert len(seen) >= len("two")


def test_nothing_is_guessed_on_a_battery(worker_of, monkeypatch):
    monkeypatch.setattr(
        scheduler.psutil, "sensors_battery", lambda: SimpleNamespace(power_plugged=False), raising=False
    )
    denoiser = ScriptedDenoiser(fill_of)
    worker = worker_of(denoiser, SPECULATING)
    first = worker.submit(ask(max_lines=1)).result(TIMEOUT)
    wait_until(lambda: worker.is_idle)
    assert denoiser.num_steps == first.steps


class HeldGuess(Gate):
    """Waits only in what comes after the first fill."""

    def prefill(self, slot, prompt_ids):
        self.is_held = self._parts(prompt_ids)[0] == "a = one("
        return super().prefill(slot, prompt_ids)

    def predict(self, *args, **kwargs):
        return super().predict(*args, **kwargs) if self.is_held else ScriptedDenoiser.predict(self, *args, **kwargs)


def test_a_guess_that_was_stopped_answers_nobody_and_who_waits_is_told(worker_of, mains):
    denoiser = HeldGuess(fill_of, tokens_per_step=1)
    worker = worker_of(denoiser, SPECULATING)
    first = worker.submit(ask(max_lines=1)).result(TIMEOUT)
    assert denoiser.is_inside.wait(TIMEOUT)
    other = worker.submit(ask(text="a = x", max_lines=1))  # stops the guess, which is inside of a pass
    right = worker.submit(ask(text="a = " + first.text, max_lines=1))
    assert other.cancelled()
    assert not right.cancelled()
    denoiser.go_on.set()
    assert right.result(TIMEOUT).text == "two"
