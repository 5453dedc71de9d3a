"""Connections to a daemon, and its end."""

import socket
import time
from dataclasses import replace

import pytest
from shared_daemon import wait_until

from dg_lsp import __version__
from dg_lsp.daemon import endpoint as endpoints
from dg_lsp.daemon.endpoint import DaemonRecord, Endpoint
from dg_lsp.daemon.server import Daemon
from dg_lsp.errors import DaemonError


@pytest.mark.parametrize("endpoint", ["socket", "tcp"], indirect=True)
def test_the_token_is_required(start, endpoint):
    start()
    record = endpoint.read()
    assert endpoint.query("status")["address"] == record.address
    assert record.address.startswith("127.0.0.1:") is (endpoint.folder.name != "daemon")
    for token in ("", record.token[:-1], record.token + "x", "é"):
        endpoint.write(replace(record, token=token))
        with pytest.raises(DaemonError, match="the token is wrong"):
            endpoint.query("stop")
    endpoint.write(record)
    assert endpoint.query("status")["version"] == __version__


@pytest.mark.parametrize(
    "sent",
    [
        *(b"", b"GET / HTTP/1.1\r\n\r\n", b"[1]\n", b"\xff\n", b"{" * 100 + b"\n", b"no end", b"{}\n"),
        b'{"token": "\\ud800"}\n',
    ],
)
def test_other_protocols_are_disconnected(start, endpoint, sent, monkeypatch, capfd):
    monkeypatch.setattr(endpoints, "SECONDS", 0.2)
    start()
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(str(endpoint.socket_path))
        stranger.sendall(sent)
        stranger.settimeout(30)
        assert stranger.recv(100) in (b"", b'{"refused": "the token is wrong"}\n')
    monkeypatch.undo()
    assert endpoint.query("status")["sessions"] == 0
    assert capfd.readouterr().err == ""


def test_a_daemon_that_the_user_started_stays_until_one_of_another_version_is_started(start, endpoint):
    daemon = start(idle_seconds=0.0)
    newer, older = Endpoint(endpoint.folder, "9"), Endpoint(endpoint.folder, "0")
    older.write(DaemonRecord(1, daemon._record.started - 1, "token", "proof", "127.0.0.1:1"))
    wait_until(lambda: time.monotonic() > daemon._last_used + 0.1)
    assert not daemon._is_done()
    newer.write(DaemonRecord(1, daemon._record.started + 1, "token", "proof", "127.0.0.1:1"))
    wait_until(lambda: endpoint.read() is None)


def test_a_daemon_that_cannot_write_its_record_ends_with_the_reason(endpoint, scripts, monkeypatch):
    daemon = Daemon(endpoint, scripts)
    monkeypatch.setattr("tempfile.mkdtemp", lambda *_: endpoint.folder.read_bytes())  # in place of a full disk
    with pytest.raises(DaemonError, match=r"cannot be used \(Is a directory\)"):
        daemon.run()
    with endpoint.acquire_lock():
        assert not endpoint.socket_path.exists()
