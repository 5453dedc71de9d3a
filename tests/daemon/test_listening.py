import json
import os
import socket
import stat
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from dg_lsp import __version__
from dg_lsp.daemon import session
from dg_lsp.daemon.calling import Refused, ask, call
from dg_lsp.daemon.listening import Daemon
from dg_lsp.daemon.place import Place, Record
from dg_lsp.errors import DaemonError, DaemonRunsError


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_only_the_user_gets_at_anything_of_it(start, place):
    daemon = start()
    daemon._working.begin("it", lambda: False)
    assert mode(place.folder / "daemon.work") == 0o600
    assert mode(place.folder) == 0o700
    assert mode(place.socket) == 0o600
    assert mode(place.folder / "daemon.json") == 0o600
    assert mode(place.lock) == 0o600


def test_it_says_what_it_holds(start, place):
    start()
    answer = ask(place.read(), "status")
    assert answer["version"] == __version__
    assert answer["sessions"] == 0
    assert answer["models"] == []
    assert answer["memory_bytes"] > 1 << 20


def test_a_second_one_is_refused_and_harms_nothing(start, place):
    start()
    with pytest.raises(DaemonRunsError):
        start()
    assert ask(place.read(), "status")["version"] == __version__


def test_it_leaves_nothing_to_be_found(start, place):
    start()
    record = place.read()
    assert "stopping" in ask(record, "stop")
    end = time.monotonic() + 30
    while place.read() is not None or place.socket.exists():
        assert time.monotonic() < end
        time.sleep(0.01)
    with pytest.raises((FileNotFoundError, ConnectionRefusedError)):
        ask(record, "status")


def test_what_a_killed_one_left_is_taken_away(start, place):
    place.make()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(place.socket))
    place.write(Record(__version__, 1, "old", path=str(place.socket)))
    start()
    assert ask(place.read(), "status")["version"] == __version__


def test_a_path_that_is_too_long_for_a_socket(tmp_path, scripts):
    place = Place.at(str(tmp_path / ("x" * 120)))
    assert place.socket is None
    daemon = Daemon(place, scripts, idle_seconds=0.05, is_lingering=True)
    path = Path(daemon.address)
    assert mode(path.parent) == 0o700
    assert mode(path) == 0o600
    thread = threading.Thread(target=daemon.run)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    assert not path.parent.exists()


def test_tcp_is_on_loopback_and_asks_for_the_token(start, place):
    start(port=0)
    record = place.read()
    assert record.host == "127.0.0.1"
    assert ask(record, "status")["address"] == f"127.0.0.1:{record.port}"
    for token in ("", record.token[:-1], record.token + "x", "é"):
        with pytest.raises(Refused, match="token"):
            ask(replace(record, token=token), "stop")
    assert ask(record, "status")["version"] == __version__


def test_an_address_that_is_taken(start, place, scripts):
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(DaemonError, match="cannot listen"):
        start(port=taken.getsockname()[1])
    start()  # the lock was given back


def test_a_folder_that_cannot_be_made(start, place):
    place.folder.write_text("in the way")
    with pytest.raises(DaemonError, match="DG_LSP_DAEMON_DIR"):
        start()


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\n\r\n", b"[1]\n", b"\xff\n", b"{" * 100 + b"\n", b"no end"])
def test_who_speaks_otherwise_is_hung_up_on(start, place, said, monkeypatch):
    monkeypatch.setattr(session, "SECONDS", 0.2)
    start()
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(place.read().path)
        stranger.sendall(said)
        stranger.settimeout(30)
        assert stranger.recv(100) == b""
    assert ask(place.read(), "status")["sessions"] == 0


def test_who_was_refused_or_only_asks_is_no_session(start, place):
    daemon = start()
    record = place.read()
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(record.path)
        while not daemon._connections:
            time.sleep(0.01)
        for _ in range(20):
            with pytest.raises(Refused, match="settings"):
                call(record, "session", settings={"nonsense": 1}, over={})
            assert ask(record, "status")["sessions"] == 0


def test_another_version_may_stop_it_but_not_use_it(start, place, monkeypatch):
    start()
    record = place.read()
    monkeypatch.setattr("dg_lsp.__version__", "9.9.9")
    with pytest.raises(Refused, match=r"9\.9\.9: run dg-lsp daemon stop"):
        call(record, "session", settings={}, over={})
    assert ask(record, "status")["version"] == __version__
    ask(record, "stop")


@pytest.mark.parametrize("settings", [{"nonsense": 1}, {"fill": {"deadline_ms": -1}}, [1]])
def test_settings_that_it_does_not_understand(start, place, settings):
    start()
    with pytest.raises(Refused, match="settings"):
        call(place.read(), "session", settings=settings, over={})


def test_a_lingering_one_leaves_when_nobody_needs_it(start, place):
    start(is_lingering=True, idle_seconds=0.2)
    end = time.monotonic() + 30
    while place.read() is not None:
        assert time.monotonic() < end
        time.sleep(0.02)


def test_one_that_was_started_by_hand_stays(start, place):
    start(idle_seconds=0.01)
    time.sleep(1.5)
    assert ask(place.read(), "status")["sessions"] == 0


def test_who_listens_there_and_is_no_daemon(place):
    place.make()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place.socket))
        place.socket.chmod(0o600)
        listener.listen()
        with pytest.raises(TimeoutError):
            ask(Record("x", 1, "t", path=str(place.socket)), "status", seconds=0.1)


def test_who_took_its_port_learns_nothing_of_the_user():
    """A daemon that is dead leaves a record behind, and a port that anybody may take."""
    heard = []

    def pretend(listener):
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as stream:
            heard.append(stream.readline())
            connection.sendall(b'{"version": "1", "proof": "guessed"}\n')
            heard.append(stream.readline())

    with socket.create_server(("127.0.0.1", 0)) as listener:
        impostor = threading.Thread(target=pretend, args=(listener,))
        impostor.start()
        record = Record("1", 1, "token", "proof", host="127.0.0.1", port=listener.getsockname()[1])
        with pytest.raises(ConnectionError, match="no daemon of ours"):
            call(record, "session", settings={"model": "secret"})
        impostor.join(30)
    assert [json.loads(heard[0]).keys(), heard[1]] == [{"version", "token"}, b""]


@pytest.mark.skipif(sys.platform == "win32", reason="folders of users are apart there")
def test_what_belongs_to_another_user_is_not_there(start, place, monkeypatch):
    start()
    record = place.read()
    assert record is not None
    for path, mode in ((place.folder, 0o777), (place.folder / "daemon.json", 0o644)):
        before = stat.S_IMODE(path.stat().st_mode)
        path.chmod(mode)
        assert place.read() is None
        path.chmod(before)
    assert place.read() == record
    place.socket.chmod(0o666)
    with pytest.raises(ConnectionError, match="another user"):
        ask(record, "status")
    place.socket.chmod(0o600)
    uid = os.getuid()
    with monkeypatch.context() as other:
        other.setattr(os, "getuid", lambda: uid + 1)
        assert place.read() is None
        with pytest.raises(ConnectionError, match="another user"):
            ask(record, "status")
        with pytest.raises(PermissionError, match="another user"):
            place.make()
    assert ask(record, "status")["sessions"] == 0


def test_a_record_is_read_or_there_is_none(place):
    place.make()
    path = place.folder / "daemon.json"
    assert place.read() is None
    for text in ("", "{", "[]", "{}", json.dumps({"version": "1", "pid": "1", "token": "t"}), "\xff"):
        path.write_text(text, encoding="latin-1")
        assert place.read() is None
    record = Record("1", 2, "t", host="127.0.0.1", port=3)
    place.write(record)
    assert place.read() == record


def test_where_it_is_looked_for(tmp_path):
    assert Place.of_user({"DG_LSP_DAEMON_DIR": str(tmp_path)}).folder == tmp_path
    assert str(Place.of_user({"XDG_RUNTIME_DIR": "/run/user/7"}).folder) == "/run/user/7/dg-lsp"
    given = {"XDG_RUNTIME_DIR": "/run/user/7", "DG_LSP_DATA_DIR": "/elsewhere"}
    assert Place.of_user(given).folder.name == "daemon"
