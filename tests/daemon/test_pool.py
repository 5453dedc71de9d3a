from types import SimpleNamespace

import attrs
import pytest
from workers import TIMEOUT, ask

from dg_lsp.daemon import pool as pool_module
from dg_lsp.daemon.pool import Pool
from dg_lsp.errors import ModelNotFoundError
from dg_lsp.reading import parse_settings
from dg_lsp.settings import FillSettings, Settings


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
