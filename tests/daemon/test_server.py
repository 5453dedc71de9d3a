"""Connections to a daemon, and its end."""

import errno
import itertools
import json
import socket
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from shared_daemon import wait_until

from dg_lsp import __version__
from dg_lsp.daemon import client, server
from dg_lsp.daemon.client import Record, Refused, ask, call
from dg_lsp.daemon.server import Daemon
from dg_lsp.errors import DaemonError


def open_session(record, **settings):
    return call(record, "session", settings=settings)[0]


def test_status_lists_version_sessions_models_and_memory(start, endpoint):
    start()
    with open_session(endpoint.read()):
        facts = ask(endpoint.read(), "status")
    assert (facts["version"], facts["sessions"], facts["models"], facts["crashes"]) == (__version__, 1, [], [])
    assert facts["memory_bytes"] > 1 << 20


def test_a_stopped_daemon_removes_record_and_socket(start, endpoint):
    start()
    record = endpoint.read()
    session = open_session(record)
    assert "stopping" in ask(record, "stop")
    assert session.recv(1) == b""
    session.close()
    wait_until(lambda: endpoint.read() is None and not endpoint.socket_path.exists())
    with pytest.raises((FileNotFoundError, ConnectionRefusedError)):
        ask(record, "status")
    start()
    assert ask(endpoint.read(), "status")["crashes"] == []


def test_tcp_listens_on_loopback_and_requires_the_token(start, endpoint):
    start(is_tcp=True)
    record = endpoint.read()
    assert record.host == "127.0.0.1"
    assert ask(record, "status")["address"] == f"127.0.0.1:{record.port}"
    for token in ("", record.token[:-1], record.token + "x", "é"):
        with pytest.raises(Refused, match="token"):
            ask(replace(record, token=token), "stop")
    assert ask(record, "status")["version"] == __version__


@pytest.mark.parametrize(
    "sent",
    [
        *(b"", b"GET / HTTP/1.1\r\n\r\n", b"[1]\n", b"\xff\n", b"{" * 100 + b"\n", b"no end", b"{}\n"),
        b'{"token": "\\ud800"}\n',
    ],
)
def test_other_protocols_are_disconnected(start, endpoint, sent, monkeypatch, capfd):
    monkeypatch.setattr(client, "SECONDS", 0.2)
    start()
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(endpoint.read().path)
        stranger.sendall(sent)
        stranger.settimeout(30)
        assert stranger.recv(100) in (b"", b'{"refused": "the token is wrong"}\n')
    monkeypatch.undo()
    assert ask(endpoint.read(), "status")["sessions"] == 0
    assert capfd.readouterr().err == ""


class Trickle:
    """A connection on which a byte arrives again and again."""

    def settimeout(self, seconds):
        assert seconds > 0

    def recv(self, _size):
        return b" "


def test_a_client_that_trickles_is_disconnected(monkeypatch):
    monkeypatch.setattr(client, "time", SimpleNamespace(monotonic=itertools.count().__next__))
    with pytest.raises(TimeoutError):
        client.receive(Trickle())


@pytest.mark.parametrize("settings", [{"nonsense": 1}, {"completion": {"deadline_ms": -1}}, [1]])
def test_settings_that_are_not_valid_are_refused(start, endpoint, settings):
    start()
    with pytest.raises(Refused, match="settings"):
        call(endpoint.read(), "session", settings=settings)


def test_a_daemon_that_the_user_started_stays(start):
    daemon = start(idle_seconds=0.0)
    wait_until(lambda: time.monotonic() > daemon._last_used + 0.1)
    assert not daemon._is_done()


def test_a_program_that_took_over_the_port_receives_nothing_but_the_token():
    """A daemon that was killed leaves its record behind, and a port that any program may take."""
    received = []

    def pretend(listener):
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as stream:
            received.append(stream.readline())
            connection.sendall(b'{"version": "1", "proof": "guessed"}\n')
            received.append(stream.readline())

    with socket.create_server(("127.0.0.1", 0)) as listener:
        impostor = threading.Thread(target=pretend, args=(listener,))
        impostor.start()
        record = Record("1", 1, "token", "proof", host="127.0.0.1", port=listener.getsockname()[1])
        with pytest.raises(ConnectionError, match="not our daemon"):
            call(record, "session", settings={"model": {"name": 3}})
        impostor.join(30)
    assert [json.loads(received[0]).keys(), received[1]] == [{"version", "token"}, b""]


def test_a_socket_that_others_can_use_is_not_trusted(start, endpoint):
    start()
    endpoint.socket_path.chmod(0o666)
    with pytest.raises(ConnectionError, match="another user"):
        ask(endpoint.read(), "status")


def test_a_daemon_that_cannot_write_its_record_ends_with_the_reason(endpoint, scripts):
    endpoint.prepare()
    (endpoint.folder / "daemon.json.new").mkdir()  # in place of a full disk
    daemon = Daemon(endpoint, scripts)
    with pytest.raises(DaemonError, match=r"cannot be used \(Is a directory\)"):
        daemon.run()
    assert not endpoint.socket_path.exists()
    endpoint.acquire_lock().release()


def test_a_connection_for_which_there_is_no_thread_is_closed_and_the_daemon_goes_on(start, endpoint, monkeypatch):
    def fail(_thread):
        raise RuntimeError("can't start new thread")

    start()
    monkeypatch.setattr(threading.Thread, "start", fail)
    with pytest.raises(ConnectionError):
        ask(endpoint.read(), "status")
    monkeypatch.undo()
    assert ask(endpoint.read(), "status")["sessions"] == 0


def test_a_daemon_without_descriptors_waits_before_it_accepts_again(start, endpoint, monkeypatch):
    pauses, errors, accept = [], [errno.EMFILE, errno.EMFILE], socket.socket.accept

    def fail_first(listener):
        if errors:
            raise OSError(errors.pop(), "Too many open files")
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", fail_first)
    clock = SimpleNamespace(sleep=pauses.append, monotonic=time.monotonic, time=time.time)
    monkeypatch.setattr(server, "time", clock)
    start()
    assert ask(endpoint.read(), "status")["sessions"] == 0
    assert len(pauses) == 2
