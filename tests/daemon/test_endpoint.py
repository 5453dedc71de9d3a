import itertools
import json
import os
import socket
import stat
import sys
import threading
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from dg_lsp.daemon import endpoint as endpoints
from dg_lsp.daemon.endpoint import DaemonRecord, Endpoint
from dg_lsp.errors import DaemonError
from dg_lsp.system import data_folder

RECORD = DaemonRecord(2, 1.5, "token", "proof", "127.0.0.1:3")


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_only_the_user_can_read_the_folder_and_its_files(start, endpoint):
    start()
    endpoint.open_log().close()
    assert mode(endpoint.folder) == 0o700
    files = {path: mode(path) for path in endpoint.folder.iterdir()}
    paths = endpoint.record_path, endpoint.lock, endpoint.log, endpoint.socket_path
    assert files == dict.fromkeys(paths, 0o600)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows separates the folders of users")
def test_a_folder_that_another_user_owns_or_can_use_is_ignored(endpoint, monkeypatch):
    endpoint.prepare()
    endpoint.write(RECORD)
    for wrong in (0o777, 0o720, 0o705):
        endpoint.folder.chmod(wrong)
        assert endpoint.read() is None
    endpoint.prepare()
    assert endpoint.read() == RECORD
    uid = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    assert endpoint.read() is None
    with pytest.raises(DaemonError, match="another user"):
        endpoint.prepare()


@pytest.mark.parametrize(
    "content",
    [
        *("", "{", "[]", "{}", "\xff", "[" * 100_000, '{"a":' * 100_000, "9" * 5000),
        '{"pid": "1", "started": 0, "token": "t", "proof": "p", "address": "a"}',
    ],
    ids=lambda content: content[:8],
)
def test_a_record_that_is_not_valid_is_ignored(endpoint, content):
    endpoint.prepare()
    assert endpoint.read() is None
    endpoint.write(RECORD)
    assert endpoint.read() == RECORD
    endpoint.record_path.write_text(content, encoding="latin-1")
    assert endpoint.read() is None
    assert endpoint.records() == {}


def test_the_folder_comes_from_the_environment(tmp_path):
    assert Endpoint.of_user({"DG_LSP_DAEMON_DIR": str(tmp_path)}).folder == tmp_path
    assert str(Endpoint.of_user({"XDG_RUNTIME_DIR": "/run/user/7"}).folder) == "/run/user/7/dg-lsp"
    assert Endpoint.of_user({"XDG_RUNTIME_DIR": "run"}).folder.is_relative_to(data_folder())  # not in this folder
    given = {"XDG_RUNTIME_DIR": "/run/user/7", "DG_LSP_DATA_DIR": "/elsewhere"}
    assert Endpoint.of_user(given).folder.name == "daemon"


def test_a_long_log_is_emptied(endpoint):
    endpoint.prepare()
    for size in (10, 1 << 21, 0):
        with endpoint.open_log() as log:
            assert endpoint.log.stat().st_size in (0, 10)
            log.write(b"x" * size)


def test_a_program_that_took_over_the_port_receives_nothing_but_the_token(endpoint):
    """A daemon that was killed leaves its record behind, and a port that any program may take."""
    received = []

    def pretend(listener):
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as stream:
            received.append(stream.readline())
            connection.sendall(b'{"proof": "guessed"}\n')
            received.append(stream.readline())

    with socket.create_server(("127.0.0.1", 0)) as listener:
        impostor = threading.Thread(target=pretend, args=(listener,))
        impostor.start()
        endpoint.prepare()
        endpoint.write(DaemonRecord(1, 0.0, "token", "proof", f"127.0.0.1:{listener.getsockname()[1]}"))
        assert endpoint.call({"want": "session", "settings": {"model": {"name": 3}}}) is None
        impostor.join(30)
    assert [json.loads(received[0]), received[1]] == [{"token": "token"}, b""]


def test_a_client_that_trickles_is_disconnected(monkeypatch):
    monkeypatch.setattr(endpoints, "time", SimpleNamespace(monotonic=itertools.count().__next__))
    with pytest.raises(TimeoutError):
        endpoints.receive(Mock(recv=lambda _: b" "))
