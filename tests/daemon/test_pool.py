import time
from types import SimpleNamespace

import attrs
import pytest
from workers import TIMEOUT, ask

from dg_lsp.daemon import pool as pool_module
from dg_lsp.daemon.pool import Pool
from dg_lsp.errors import ModelMemoryError, ModelNotFoundError
from dg_lsp.settings import FillSettings, Settings, parse_settings


@pytest.fixture
def clock(monkeypatch):
    """What time the pool thinks it is."""
    clock = SimpleNamespace(now=1000.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(pool_module, "time", clock)
    return clock


@pytest.fixture
def pool(scripts, clock):
    pool = Pool(scripts, 60)
    yield pool
    pool.close()


def test_sessions_of_a_model_share_it_whatever_else_they_set(pool, scripts):
    several = [
        Settings(),
        Settings(fill=FillSettings(deadline_ms=7.0)),
        parse_settings({"exclude": {"secrets": False}, "daemon": {"use": "start"}, "rewrite": {"strength": 0.5}}),
    ]
    shares = [pool.share(settings) for settings in several]
    for share in shares:
        share.ready.result(TIMEOUT)
    assert len(scripts.denoisers) == 1
    assert pool.facts() == [{"model": "dg-mini", "state": "ready", "sessions": 3}]
    pool.share(parse_settings({"runtime": {"num_slots": 2}})).ready.result(TIMEOUT)
    pool.share(Settings(model="other")).ready.result(TIMEOUT)
    assert len(scripts.denoisers) == 3


def test_a_model_is_closed_some_time_after_the_last_session(pool, scripts, clock):
    one, other = pool.share(Settings()), pool.share(Settings())
    one.ready.result(TIMEOUT)
    one.close()
    one.close()
    clock.now += 61
    pool.sweep()
    assert not scripts.denoisers[0].is_closed
    other.close()
    pool.sweep()
    assert not scripts.denoisers[0].is_closed
    clock.now += 61
    pool.sweep()
    assert scripts.denoisers[0].is_closed
    assert pool.facts() == []


def test_a_model_that_was_missing_is_tried_again(pool, scripts):
    scripts.error = ModelNotFoundError("nowhere")
    assert pool.share(Settings()).ready.exception(TIMEOUT) is scripts.error
    assert pool.facts()[0]["state"] == "failed"
    scripts.error = None
    assert pool.share(Settings()).ready.result(TIMEOUT).spec.name == "scripted"


def test_closing_a_part_cancels_its_own_requests_only(pool, scripts):
    settings = attrs.evolve(Settings(), fill=FillSettings(deadline_ms=60_000))
    one, other = pool.share(settings), pool.share(settings)
    one.ready.result(TIMEOUT)
    scripts.denoisers[0]._step_seconds = 0.05
    kept, left = one.submit(ask()), other.submit(ask())
    other.close()
    assert left.cancelled()
    assert kept.result(TIMEOUT).text == "fill"


def test_what_one_was_given_is_not_remembered_for_the_other(pool):
    one, other = pool.share(Settings()), pool.share(Settings())
    assert not one.submit(ask()).result(TIMEOUT).is_cached
    assert one.submit(ask()).result(TIMEOUT).is_cached
    assert not other.submit(ask()).result(TIMEOUT).is_cached
    one.configure(FillSettings(check_syntax=False))
    assert not one.submit(ask()).result(TIMEOUT).is_cached


class Cramped:
    """Opens as many models as there is room for."""

    def __init__(self, scripts, room):
        self.scripts = scripts
        self.room = room
        self.num_tries = 0
        self.is_inside = False

    def __call__(self, settings):
        self.num_tries += 1
        assert not self.is_inside, "two at a time would take the same memory for free"
        self.is_inside = True
        time.sleep(0.01)
        self.is_inside = False
        if sum(not denoiser.is_closed for denoiser in self.scripts.denoisers) >= self.room:
            raise ModelMemoryError(f"{settings.model} needs more")
        return self.scripts(settings)


def test_what_nobody_has_makes_room_the_longest_idle_first(scripts):
    cramped = Cramped(scripts, room=2)
    pool = Pool(cramped, 60)
    shares = [pool.share(Settings(model=name)) for name in ("a", "b")]
    for share in shares:
        share.ready.result(TIMEOUT)
        share.close()
    pool.share(Settings(model="a")).ready.result(TIMEOUT)  # in use again
    for _ in range(2):
        pool.share(Settings(model="c")).ready.result(TIMEOUT)
    assert [facts["model"] for facts in pool.facts()] == ["a", "c"]
    refusal = pool.share(Settings(model="d")).ready.exception(TIMEOUT)
    assert isinstance(refusal, ModelMemoryError)
    assert str(refusal) == "d needs more; the daemon also holds a (1 session), c (2 sessions)"
    assert {facts["model"]: facts["state"] for facts in pool.facts()} == {"a": "ready", "c": "ready", "d": "failed"}
    pool.close()


def test_no_model_is_closed_for_one_that_fits(scripts):
    pool = Pool(Cramped(scripts, room=9), 60)
    for name in "abc":
        share = pool.share(Settings(model=name))
        share.ready.result(TIMEOUT)
        share.close()
    assert len(pool.facts()) == 3
    assert not any(denoiser.is_closed for denoiser in scripts.denoisers)
    pool.close()


def test_a_model_that_never_fits_says_so_once_all_others_are_gone(scripts):
    cramped = Cramped(scripts, room=1)
    pool = Pool(cramped, 60)
    share = pool.share(Settings(model="a"))
    share.ready.result(TIMEOUT)
    share.close()
    cramped.room = 0
    assert str(pool.share(Settings(model="b")).ready.exception(TIMEOUT)) == "b needs more"
    assert scripts.denoisers[0].is_closed
    assert cramped.num_tries == 3
    pool.close()


def test_models_are_opened_one_after_the_other(scripts):
    pool = Pool(Cramped(scripts, room=9), 60)
    shares = [pool.share(Settings(model=name)) for name in "abcdef"]
    for share in shares:
        share.ready.result(TIMEOUT)
    pool.close()


def test_a_model_without_work_leaves_the_memory_while_its_editors_stay(scripts):
    pool = Pool(scripts, 60)
    share = pool.share(parse_settings({"runtime": {"idle_seconds": 0.05}}))
    share.ready.result(TIMEOUT)
    end = time.monotonic() + TIMEOUT
    while pool.facts() != [{"model": "dg-mini", "state": "asleep", "sessions": 1}]:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert scripts.denoisers[0].is_closed
    assert share.submit(ask()).result(TIMEOUT).text == "fill"
    pool.close()
