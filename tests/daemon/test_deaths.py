"""How a daemon ended is known to the next one, and what it means for a model that did it."""

import json
import signal
import subprocess
import sys
import threading
import time

import pytest
from workers import TIMEOUT, ask

from dg_lsp.daemon import deaths as deaths_module
from dg_lsp.daemon import working as working_module
from dg_lsp.daemon.calling import ask as ask_daemon
from dg_lsp.daemon.deaths import MAX_DEATHS, Deaths
from dg_lsp.daemon.place import Record
from dg_lsp.daemon.pool import Pool
from dg_lsp.daemon.working import KILLED, Working
from dg_lsp.errors import ModelCrashedError
from dg_lsp.settings import Settings

DYING = """
import os, sys
from pathlib import Path
from dg_lsp.daemon.working import Working
working = Working(Path(sys.argv[1]))
working.listen()
working.begin("it", lambda: False)
os.kill(os.getpid(), int(sys.argv[2]))
"""


@pytest.fixture
def deaths(place):
    place.make()
    return Deaths(place.folder)


@pytest.fixture
def working(place):
    place.make()
    return Working(place.folder)


def test_a_model_that_died_too_often_is_refused_and_others_are_not(deaths):
    for _ in range(MAX_DEATHS - 1):
        deaths.note("Aborted", ["bad", "beside"])
    deaths.check("bad")
    deaths.note("Aborted", ["bad"])
    with pytest.raises(ModelCrashedError, match=r"bad ended the daemon 3 times \(Aborted\); it rests for 10 min"):
        deaths.check("bad")
    deaths.check("beside")
    deaths.forget()
    deaths.check("bad")


def test_what_is_long_ago_does_not_count(deaths, monkeypatch):
    for _ in range(MAX_DEATHS):
        deaths.note("Aborted", ["bad"])
    monkeypatch.setattr(deaths_module, "SECONDS", 0.0)
    deaths.check("bad")
    assert deaths.recent() == []


@pytest.mark.parametrize("text", ["", "{", "[]", "[1]", '[{"at": "x", "how": "y", "models": []}]', "\xff"])
def test_a_ledger_that_cannot_be_read_is_empty(deaths, place, text):
    (place.folder / "daemon.deaths").write_text(text, encoding="latin-1")
    assert deaths.recent() == []
    deaths.note("Aborted", [])
    assert len(deaths.recent()) == 1


@pytest.mark.parametrize(
    ("number", "how"),
    [(signal.SIGABRT, "Aborted"), (signal.SIGSEGV, "Segmentation fault"), (signal.SIGKILL, KILLED)],
)
def test_a_dying_process_says_how_and_with_what(working, place, number, how):
    command = [sys.executable, "-c", DYING, str(place.folder), str(int(number))]
    assert subprocess.run(command, check=False, timeout=TIMEOUT).returncode == -number
    said, models, words = working.last()
    assert (said, models, bool(words)) == (how, ["it"], how != KILLED)
    working.clear()
    assert working.last() == (KILLED, [], "")
    assert list(place.folder.iterdir()) == []


def test_a_model_is_at_work_until_it_has_had_nothing_to_do_for_a_while(working, monkeypatch):
    is_idle = [False]
    working.begin("it", lambda: is_idle[0])
    working.sweep()
    assert working.last()[1] == ["it"]
    is_idle[0] = True
    working.sweep()
    assert working.last()[1] == ["it"]  # what was asked may not have reached it
    monkeypatch.setattr(working_module, "_SETTLED", -1.0)
    working.sweep()
    assert working.last()[1] == []


def test_a_model_is_to_blame_while_it_is_opened_or_asked_and_not_while_it_waits(scripts, working):
    seen = []

    def open_engine(settings):
        seen.append((settings.model, working.last()[1]))
        return scripts(settings)

    pool = Pool(open_engine, 60, working)
    shares = [pool.share(Settings(model=name)) for name in ("one", "other")]
    for share in shares:
        share.ready.result(TIMEOUT)
    assert sorted(seen) == [("one", ["one"]), ("other", ["other"])]
    assert working.last()[1] == []
    for denoiser in scripts.denoisers:
        denoiser._step_seconds = 0.3
    running = shares[0].submit(ask())
    assert working.last()[1] == ["one"]
    running.result(TIMEOUT)
    pool.close()


def test_a_model_that_somebody_waits_for_stays_to_blame_when_it_is_open(scripts, working):
    go_on = threading.Event()

    def open_engine(settings):
        assert go_on.wait(TIMEOUT)
        engine = scripts(settings)
        scripts.denoisers[0]._step_seconds = 0.3
        return engine

    pool = Pool(open_engine, 60, working)
    share = pool.share(Settings())
    waiting = share.submit(ask())
    go_on.set()
    share.ready.result(TIMEOUT)
    assert working.last()[1] == ["dg-mini"]
    waiting.result(TIMEOUT)
    pool.close()


def test_the_next_daemon_notes_it_and_keeps_its_words(start, place, scripts):
    place.make()
    place.write(Record("1", 1, "old"))
    (place.folder / "daemon.work").write_text(json.dumps(["dg-mini"]))
    (place.folder / "daemon.crash").write_text("Fatal Python error: Bus error\n\nin predict\n")
    for _ in range(MAX_DEATHS - 1):
        Deaths(place.folder).note("Aborted", ["dg-mini"])
    daemon = start()
    found = ask_daemon(place.read(), "status")["deaths"]
    assert [(one["how"], one["models"]) for one in found] == [("Aborted", ["dg-mini"])] * 2 + [
        ("Bus error", ["dg-mini"])
    ]
    assert "in predict" in place.log.read_text()
    share = daemon._pool.share(Settings())
    with pytest.raises(ModelCrashedError, match="Bus error"):
        share.ready.result(TIMEOUT)
    assert scripts.denoisers == []
    other = daemon._pool.share(Settings(model="other"))
    assert other.ready.result(TIMEOUT)


def test_one_that_leaves_by_itself_is_no_death(start, place):
    start().stop()
    end = time.monotonic() + TIMEOUT
    while place.read() is not None:
        assert time.monotonic() < end
        time.sleep(0.01)
    start()
    assert ask_daemon(place.read(), "status")["deaths"] == []
    assert not (place.folder / "daemon.crash").exists()
