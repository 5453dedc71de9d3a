"""How a relay comes by a server, and when it does without one."""

import json
import sys
import threading
import time

import pytest
from relayed import TIMEOUT, Editor, Puppet

from dg_lsp import __version__
from dg_lsp.daemon import finding, relay
from dg_lsp.daemon.calling import ask
from dg_lsp.daemon.finding import MAX_DEATHS, Finder, Ways
from dg_lsp.daemon.place import Record

DYING = (sys.executable, "-c", "")
STARTER = """
import sys, time
from pathlib import Path
sys.path[:0] = {path!r}
from dg_lsp.daemon.place import Place, Record
with Path({log!r}).open("a") as log:
    log.write("x")
time.sleep(0.3)
"""


@pytest.fixture
def quick(monkeypatch):
    """Nobody waits for long."""
    monkeypatch.setattr(finding, "RETURN_SECONDS", 0.1)
    monkeypatch.setattr(finding, "_PAUSES", (0.0,))


@pytest.fixture
def find(place, quick):
    """`find(starter, child)` -> a finder; what `found(finder)` gives is closed in the end."""
    return lambda starter=(), child=DYING: Finder(
        Ways(str(place.folder), {"settings": {}, "over": {}}, tuple(starter), tuple(child)), lambda *_: None
    )


@pytest.fixture
def found():
    made = []

    def look(finder):
        got = finder.find()
        if got.upstream is not None:
            got.upstream.start()
            made.append(got.upstream)
        return got

    yield look
    for upstream in made:
        upstream.close()


def starter(place):
    """Says that it was started, and nothing comes of it."""
    log = place.folder.parent / "started"
    log.touch()
    code = STARTER.format(path=[path for path in sys.path if path], log=str(log))
    return (sys.executable, "-c", code), log


def test_of_several_relays_one_starts_a_daemon_at_a_time(place, find, found):
    command, log = starter(place)
    began = time.monotonic()
    threads = [threading.Thread(target=found, args=(find(command),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    assert log.read_text() == "xxx"
    assert time.monotonic() - began > 0.9


def test_a_relay_that_waited_for_its_turn_takes_what_the_other_has_started(place, find, found, start):
    command, log = starter(place)
    place.make()
    with finding._one_at_a_time(place):
        got = []
        thread = threading.Thread(target=lambda: got.append(found(find(command))))
        thread.start()
        time.sleep(0.3)
        start()
    thread.join(TIMEOUT)
    assert got[0].upstream.is_daemon
    assert log.read_text() == ""


def test_a_daemon_that_died_too_often_is_not_started_once_more(place, find, found):
    command, log = starter(place)
    finder = find(command)
    place.make()
    place.write(Record("1", 1, "what a killed one leaves"))
    for _ in range(MAX_DEATHS + 1):
        finder.note_end(is_daemon=True)
    assert "died 4 times in 10 min; this editor has a server of its own" in found(finder).said
    assert log.read_text() == ""


def test_one_that_left_by_itself_may_be_started_any_number_of_times(place, find):
    finder = find()
    for _ in range(9):
        finder.note_end(is_daemon=True)
    assert finder.ends.recent() == (0, 0)


def test_what_ended_long_ago_does_not_count(find, found, monkeypatch):
    finder = find()
    for _ in range(MAX_DEATHS):
        finder.note_end(is_daemon=False)
    assert found(finder).upstream is None
    monkeypatch.setattr(finding, "DEATH_SECONDS", 0.0)
    assert found(finder).upstream is not None


def be(version, monkeypatch):
    """This end is of that version."""
    for module in ("calling", "finding"):
        monkeypatch.setattr(f"dg_lsp.daemon.{module}.__version__", version)


def test_an_idle_daemon_of_an_older_version_makes_room(place, find, found, start, monkeypatch):
    start()
    command, log = starter(place)
    be("99.0", monkeypatch)
    assert not found(find(command)).upstream.is_daemon
    assert log.read_text() == "x"
    assert place.read() is None


def test_one_that_serves_somebody_or_is_newer_stays(place, find, found, start, monkeypatch):
    start()
    record = place.read()
    command, log = starter(place)
    with monkeypatch.context() as older:
        be("0.0.0", older)
        said = found(find(command)).said
        assert "this is 0.0.0: run dg-lsp daemon stop; this editor has a server of its own" in said
    assert found(find()).upstream.is_daemon
    be("99.0", monkeypatch)
    assert not found(find(command)).upstream.is_daemon
    assert ask(record, "status")["sessions"] == 1
    assert log.read_text() == ""


@pytest.mark.parametrize(
    ("version", "is_it"),
    [("0.0.1", True), ("99.1", False), ("0.0.9.dev1", True), ("", True), (__version__, False)],
)
def test_which_version_is_older(version, is_it):
    assert finding._is_older(version) is is_it


def test_a_relay_without_a_server_rests_and_says_so_and_finds_a_daemon_again(place, quick, monkeypatch):
    monkeypatch.setattr(relay, "LOOK_SECONDS", 0.2)
    monkeypatch.setattr(relay, "_TICK", 0.1)
    editor = Editor(Ways(str(place.folder), {"settings": {}, "over": {}}, (), DYING))
    told = editor.wait(lambda one: one.get("method") == "window/showMessage")["params"]["message"]
    assert told.startswith("dg-lsp: the model's process ended 3 times in 10 min; nothing is offered until")
    editor.say("initialize", {"initializationOptions": {"editorInfo": {}}}, id=0)
    assert "ended 3 times" in editor.answer(0)["error"]["message"]
    editor.say("textDocument/inlineCompletion", {}, id=1)
    assert editor.answer(1)["result"] == {"items": []}
    status = editor.wait(lambda one: one.get("method") == "didChangeStatus")["params"]
    assert (status["kind"], status["busy"], status["dgLsp"]["state"]) == ("Error", False, "error")
    assert len([one for one in editor.heard if one.get("method") == "window/showMessage"]) == 1
    puppet = Puppet(place)
    assert puppet.wait("initialize")["params"] == {"initializationOptions": {"editorInfo": {}}}
    editor.leave()
    puppet.die()


def test_other_settings_are_a_reason_to_try_again(place, quick, tmp_path):
    flag = tmp_path / "flag"
    code = f"import pathlib, sys; pathlib.Path({str(flag)!r}).exists() and sys.stdin.buffer.read()"
    editor = Editor(Ways(str(place.folder), {"settings": {}, "over": {}}, (), (sys.executable, "-c", code)))
    editor.wait(lambda one: one.get("method") == "window/showMessage")
    flag.touch()
    editor.heard.clear()
    editor.say("workspace/didChangeConfiguration", {"settings": {}})
    editor.logged("this editor has a server of its own")
    time.sleep(0.3)
    assert not [one for one in editor.heard if "ended" in json.dumps(one)]
    editor.leave()


def test_a_server_is_watched_while_somebody_types(place, quick, monkeypatch):
    """Messages that come without a pause keep nobody from noticing that nothing comes back."""
    monkeypatch.setattr(relay, "SILENCE", 0.2)
    monkeypatch.setattr(relay, "_TICK", 0.1)
    puppet = Puppet(place)
    child = (sys.executable, "-c", "import sys; sys.stdin.buffer.read()")
    editor = Editor(Ways(str(place.folder), {"settings": {}, "over": {}}, (), child))
    editor.say("initialize", {}, id=0)
    puppet.wait("initialize")
    editor.say("textDocument/inlineCompletion", {}, id=1)
    end = time.monotonic() + TIMEOUT
    while not [one for one in editor.heard if one.get("id") == 1]:
        assert time.monotonic() < end
        editor.say("custom", {})
        time.sleep(0.02)
    editor.logged("a server of its own")
    puppet.die()
    editor.leave()
