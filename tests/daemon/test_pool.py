"""Models that sessions share."""

import threading
import time
from contextlib import ExitStack, closing

import pytest
from gates import TIMEOUT, ask

from dg_lsp.daemon.server import Pool
from dg_lsp.engine.scheduler import ResidentModels
from dg_lsp.errors import ModelMemoryError
from dg_lsp.settings import ModelSettings, Settings, parse_settings, with_setting


@pytest.fixture
def make_pool():
    with ExitStack() as stack:
        yield lambda open_engine: stack.enter_context(closing(Pool(open_engine)))


@pytest.fixture
def pool(scripts, make_pool):
    return make_pool(scripts)


def open_models(pool, *names):
    sessions = [ResidentModels(pool.share, Settings(model=ModelSettings(name=name))) for name in names]
    for session in sessions:
        session.completion.ready.result(TIMEOUT)
    return sessions


def test_sessions_of_a_model_share_it_whatever_else_they_set(pool, scripts):
    for tree in ({}, {"completion": {"deadline_ms": 7.0}}, {"daemon": {"use": "start"}, "rewrite": {"strength": 0.5}}):
        pool.share(parse_settings(tree)).ready.result(TIMEOUT)
    assert len(scripts.denoisers) == 1
    assert pool.facts() == [{"model": "auto", "state": "ready", "sessions": 3}]
    pool.share(parse_settings({"model": {"num_slots": 2}})).ready.result(TIMEOUT)
    open_models(pool, "other")
    assert len(scripts.denoisers) == 3


def test_a_session_whose_settings_are_incomplete_does_not_share_a_remote_model(pool):
    remote = parse_settings({"remote": {"url": "http://127.0.0.1:1"}})
    pool.share(remote).ready.result(TIMEOUT)
    pool.share(with_setting(remote, "privacy.is_incomplete", True)).ready.result(TIMEOUT)
    assert [model["sessions"] for model in pool.facts()] == [1, 1]


def test_a_model_is_closed_some_time_after_its_last_session(pool, scripts):
    first, second = open_models(pool, "dg-mini", "dg-mini")
    first.close()
    first.close()
    pool.close_unused(0)
    second.close()
    pool.close_unused(60)
    [third] = open_models(pool, "dg-mini")  # joins in time
    pool.close_unused(0)
    third.submit(ask()).result(TIMEOUT)
    third.close()
    pool.close_unused(0)
    assert [denoiser.is_closed for denoiser in scripts.denoisers] == [True]
    assert pool.facts() == []


def test_the_next_model_gets_the_memory_of_one_that_takes_long_to_close(scripts, make_pool):
    pool, may_close, is_closing = make_pool(SmallMemory(scripts, 1)), threading.Event(), threading.Event()
    [session] = open_models(pool, "dg-mini")
    close = scripts.denoisers[0].close

    def close_late():
        is_closing.set()
        assert may_close.wait(TIMEOUT)
        close()

    scripts.denoisers[0].close = close_late
    session.close()
    threading.Thread(target=pool.close_unused, args=(0,)).start()
    assert is_closing.wait(TIMEOUT)
    next_model = pool.share(Settings(model=ModelSettings(name="other")))
    assert pool.facts() == [{"model": "other", "state": "loading", "sessions": 1}]
    may_close.set()
    next_model.ready.result(TIMEOUT)
    assert [denoiser.is_closed for denoiser in scripts.denoisers] == [True, False]


class SmallMemory:
    def __init__(self, scripts, num_models):
        self.scripts = scripts
        self.num_models = num_models
        self.is_opening = False

    def __call__(self, settings):
        assert not self.is_opening, "two at a time would count the same memory as free"
        self.is_opening = True
        time.sleep(0.01)
        self.is_opening = False
        if sum(not denoiser.is_closed for denoiser in self.scripts.denoisers) >= self.num_models:
            raise ModelMemoryError(f"{settings.model.name} needs more")
        return self.scripts(settings)


def test_a_model_is_opened_after_those_without_sessions_are_closed(scripts, make_pool):
    pool = make_pool(SmallMemory(scripts, 2))
    for session in open_models(pool, "a", "b"):
        session.close()
    open_models(pool, "a")  # in use again
    open_models(pool, "c", "c")
    assert [facts["model"] for facts in pool.facts()] == ["a", "c"]
    refusal = pool.share(Settings(model=ModelSettings(name="d"))).ready.exception(TIMEOUT)
    assert str(refusal) == "d needs more"
    assert {facts["model"]: facts["state"] for facts in pool.facts()} == {"a": "ready", "c": "ready", "d": "failed"}
