"""Models that sessions share, and models that crash daemons."""

import threading
import time
from types import SimpleNamespace

import pytest
from gates import TIMEOUT, ask
from shared_daemon import wait_until

from dg_lsp.daemon import pool as pool_module
from dg_lsp.daemon.pool import MAX_CRASHES, CrashLog, Pool
from dg_lsp.errors import ModelCrashedError, ModelMemoryError
from dg_lsp.settings import CompletionSettings, ModelSettings, Settings, parse_settings


@pytest.fixture
def clock(monkeypatch):
    """The time that the pool sees."""
    clock = SimpleNamespace(now=1000.0, monotonic=lambda: clock.now, time=time.time)
    monkeypatch.setattr(pool_module, "time", clock)
    return clock


@pytest.fixture
def crash_log(tmp_path):
    return CrashLog(tmp_path / "crashes")


@pytest.fixture
def make_pool(crash_log):
    """`make_pool(open_engine)` -> a pool that is closed in the end."""
    made = []

    def make(open_engine):
        made.append(Pool(open_engine, 60, crash_log))
        return made[-1]

    yield make
    for pool in made:
        pool.close()


@pytest.fixture
def pool(scripts, clock, make_pool):
    return make_pool(scripts)


def open_models(pool, *names):
    shares = [pool.share(Settings(model=ModelSettings(name=name))) for name in names]
    for share in shares:
        share.ready.result(TIMEOUT)
    return shares


def test_sessions_of_a_model_share_it_whatever_else_they_set(pool, scripts):
    several = [
        Settings(),
        Settings(completion=CompletionSettings(deadline_ms=7.0)),
        parse_settings(
            {"privacy": {"exclude_secrets": False}, "daemon": {"use": "start"}, "rewrite": {"strength": 0.5}}
        ),
    ]
    for settings in several:
        pool.share(settings).ready.result(TIMEOUT)
    assert len(scripts.denoisers) == 1
    assert pool.facts() == [{"model": "auto", "state": "ready", "sessions": 3}]
    pool.share(parse_settings({"model": {"num_slots": 2}})).ready.result(TIMEOUT)
    open_models(pool, "other")
    assert len(scripts.denoisers) == 3


@pytest.mark.parametrize("closes_first", [True, False])
def test_a_model_that_fails_again_and_again_leaves_no_threads(pool, scripts, closes_first):
    """HTTP in a daemon tries to open its model every 30 seconds."""
    scripts.error = ModelMemoryError("too large")
    threads = set(threading.enumerate())
    share = pool.share(Settings())
    for _ in range(5):
        assert share.ready.exception(TIMEOUT) is scripts.error
        if closes_first:
            share.close()
        share, before = pool.share(Settings()), share
        before.close()
    assert share.ready.exception(TIMEOUT) is scripts.error
    assert len(set(threading.enumerate()) - threads) == 1


def test_a_model_is_closed_some_time_after_its_last_session(pool, scripts, clock):
    one, other = open_models(pool, "dg-mini", "dg-mini")
    one.close()
    one.close()
    clock.now += 61
    pool.sweep()
    other.close()
    pool.sweep()
    assert not scripts.denoisers[0].is_closed
    clock.now += 61
    pool.sweep()
    wait_until(lambda: scripts.denoisers[0].is_closed)
    assert pool.facts() == []


def test_a_model_that_takes_long_to_close_stops_nobody_and_the_next_one_gets_its_memory(scripts, clock, make_pool):
    pool, may_close = make_pool(SmallMemory(scripts, 1)), threading.Event()
    [share] = open_models(pool, "dg-mini")
    close, scripts.denoisers[0].close = scripts.denoisers[0].close, lambda: may_close.wait(TIMEOUT) and close()
    share.close()
    clock.now += 61
    pool.sweep()
    other = pool.share(Settings(model=ModelSettings(name="other")))
    assert not scripts.denoisers[0].is_closed
    may_close.set()
    other.ready.result(TIMEOUT)
    assert [denoiser.is_closed for denoiser in scripts.denoisers] == [True, False]


class SmallMemory:
    """Opens as many models as fit."""

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


def test_models_without_sessions_are_closed_for_one_that_does_not_fit_the_longest_idle_first(scripts, make_pool):
    pool = make_pool(SmallMemory(scripts, 2))
    for share in open_models(pool, "a", "b"):
        share.close()
    open_models(pool, "a")  # in use again
    open_models(pool, "c", "c")
    assert [facts["model"] for facts in pool.facts()] == ["a", "c"]
    refusal = pool.share(Settings(model=ModelSettings(name="d"))).ready.exception(TIMEOUT)
    assert isinstance(refusal, ModelMemoryError)
    assert str(refusal) == "d needs more; the daemon also holds a (1 session), c (2 sessions)"
    assert {facts["model"]: facts["state"] for facts in pool.facts()} == {"a": "ready", "c": "ready", "d": "failed"}


def test_a_model_that_never_fits_is_refused_once_all_others_are_closed(scripts, make_pool):
    memory = SmallMemory(scripts, 1)
    pool = make_pool(memory)
    [share] = open_models(pool, "a")
    share.close()
    memory.num_models = 0
    assert str(pool.share(Settings(model=ModelSettings(name="b"))).ready.exception(TIMEOUT)) == "b needs more"
    assert scripts.denoisers[0].is_closed


def test_a_model_without_requests_can_leave_the_memory_while_it_has_sessions(scripts, make_pool):
    pool = make_pool(scripts)
    share = pool.share(parse_settings({"model": {"idle_seconds": 0.05}}))
    share.ready.result(TIMEOUT)
    wait_until(lambda: pool.facts() == [{"model": "auto", "state": "asleep", "sessions": 1}])
    assert scripts.denoisers[0].is_closed
    assert share.submit(ask()).result(TIMEOUT).text == "fill"


def crash(crash_log, *models):
    crash_log.set_in_use(list(models))
    CrashLog(crash_log._path).add_crash()
    crash_log.set_in_use([])


def test_a_model_that_crashed_too_often_is_refused_and_others_are_not(crash_log, scripts, make_pool):
    for _ in range(MAX_CRASHES - 1):
        crash(crash_log, "bad", "beside")
    crash_log.check("bad")
    crash(crash_log, "bad")
    pool = make_pool(scripts)
    open_models(pool, "beside")
    with pytest.raises(ModelCrashedError, match="bad crashed the daemon 3 times and is refused for 10 min"):
        open_models(pool, "bad")
    crash_log.clear()
    open_models(pool, "bad")


def test_old_crashes_do_not_count(crash_log, monkeypatch):
    for _ in range(MAX_CRASHES):
        crash(crash_log, "bad")
    monkeypatch.setattr(pool_module, "CRASH_SECONDS", 0.0)
    crash_log.check("bad")
    assert crash_log.crashes() == []


@pytest.mark.parametrize("text", ["", "{", "[]", "[1]", '{"in_use": [], "crashes": [["x", []]]}', "\xff"])
def test_a_crash_log_that_is_not_valid_is_empty(crash_log, text):
    crash_log._path.write_text(text, encoding="latin-1")
    assert crash_log.crashes() == []
    crash_log.add_crash()
    assert len(crash_log.crashes()) == 1


def in_use(crash_log):
    return crash_log._read()[0]


def test_a_model_is_at_fault_while_it_is_opened_or_has_requests(scripts, make_pool, crash_log):
    seen, may_open = [], threading.Event()

    def open_engine(settings):
        seen.append((settings.model.name, in_use(crash_log)))
        assert may_open.wait(TIMEOUT)
        return scripts(settings)

    pool = make_pool(open_engine)
    early = pool.share(Settings(model=ModelSettings(name="early")))
    waiting = early.submit(ask())  # before it is open
    may_open.set()
    waiting.result(TIMEOUT)
    assert in_use(crash_log) == ["early"]
    [other] = open_models(pool, "other")
    assert seen == [("early", ["early"]), ("other", ["early", "other"])]
    assert in_use(crash_log) == ["early"]
    wait_until(lambda: pool.sweep() or in_use(crash_log) == [])
    other.submit(ask())
    assert in_use(crash_log) == ["other"]
    crash_log.close()
    early.submit(ask()).result(TIMEOUT)
    assert in_use(crash_log) == []


def test_what_a_full_disk_did_not_take_is_written_once_there_is_room(crash_log):
    path = crash_log._path
    draft = path.with_name(f"{path.name}.new")
    crash_log.set_in_use(["bad"])
    draft.mkdir()  # in place of a full disk
    crash_log.set_in_use([])
    assert in_use(crash_log) == ["bad"]
    draft.rmdir()
    crash_log.set_in_use([])
    assert in_use(crash_log) == []
