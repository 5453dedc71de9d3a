import errno
import json
import os
import socket
import stat
import sys
from types import SimpleNamespace

import pytest

from dg_lsp.cli.servers import DAEMON
from dg_lsp.daemon import client
from dg_lsp.daemon.client import Endpoint, Record
from dg_lsp.daemon.pool import CrashLog
from dg_lsp.errors import DaemonError
from dg_lsp.system import data_folder


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_only_the_user_can_read_the_folder_and_its_files(start, endpoint):
    start()._crash_log.set_in_use(["dg-mini"])
    endpoint.open_log().close()
    assert mode(endpoint.folder) == 0o700
    files = {path.name: mode(path) for path in endpoint.folder.iterdir()}
    assert files == {f"daemon.{name}": 0o600 for name in ("crashes", "json", "lock", "log", "sock")}


def test_settings_are_not_on_the_command_line_of_a_process(endpoint, monkeypatch):
    commands = []

    def run(command, **options):
        commands.append((command, options["input"]))
        return SimpleNamespace(stdout=client.READY)

    monkeypatch.setattr(client.subprocess, "run", run)
    monkeypatch.setattr(client.os, "execv", lambda _, command: commands.append((command, "")))
    monkeypatch.setattr(client.os, "chdir", lambda _: None)
    client.start(endpoint, DAEMON, '{"settings": "secret"}')
    with socket.socket() as connection:
        client.become_pipe(connection)
    (launcher, given), (pipe, _) = commands
    assert "secret" in given
    assert launcher[-len(DAEMON) :] == DAEMON
    assert "secret" not in str(commands[0][0])
    assert pipe[1:3] == ["-I", "-S"]
    assert pipe[3].endswith("pipe.py")
    assert pipe[4].isdigit()
    assert len(pipe) == 5


@pytest.mark.skipif(sys.platform == "win32", reason="Windows separates the folders of users")
def test_files_that_another_user_owns_or_can_write_are_ignored(endpoint, monkeypatch):
    endpoint.prepare()
    record = Record("1", 2, "token")
    endpoint.write(record)
    for path, wrong in ((endpoint.folder, 0o777), (endpoint.folder / "daemon.json", 0o644)):
        before = mode(path)
        path.chmod(wrong)
        assert endpoint.read() is None
        path.chmod(before)
    assert endpoint.read() == record
    uid = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    assert endpoint.read() is None
    with pytest.raises(DaemonError, match="another user"):
        endpoint.prepare()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", json.dumps({"version": "1", "pid": "1", "token": "t"}), "\xff"])
def test_a_record_that_is_not_valid_is_ignored(endpoint, text):
    endpoint.prepare()
    assert endpoint.read() is None
    endpoint.write(Record("1", 2, "t", host="127.0.0.1", port=3))
    assert endpoint.read() == Record("1", 2, "t", host="127.0.0.1", port=3)
    (endpoint.folder / "daemon.json").write_text(text, encoding="latin-1")
    assert endpoint.read() is None


def test_a_folder_with_a_long_path_is_served_over_tcp(tmp_path):
    endpoint = Endpoint(tmp_path / ("x" * 120))
    endpoint.prepare()
    with endpoint.listen(is_tcp=False) as listener:
        assert listener.family == socket.AF_INET
        assert listener.getsockname()[0] == "127.0.0.1"


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


def test_a_full_disk_leaves_no_draft(tmp_path, monkeypatch):
    def fail(_tree, _file):
        raise OSError(errno.ENOSPC, "No space left on device")

    client.write_private(tmp_path / "file", [1])
    monkeypatch.setattr(client.json, "dump", fail)
    with pytest.raises(OSError, match="No space left"):
        client.write_private(tmp_path / "file", [2])
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "[1]"


@pytest.mark.parametrize("content", ["[" * 100_000, '{"a":' * 100_000, "9" * 5000])
def test_a_damaged_record_or_crash_log_is_no_record(endpoint, content):
    endpoint.prepare()
    for path in (endpoint.folder / "daemon.json", endpoint.crashes):
        path.write_text(content)
        path.chmod(0o600)
    assert endpoint.read() is None
    assert CrashLog(endpoint.crashes).crashes() == []


def test_a_deeply_nested_line_is_no_message():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"[" * 100_000 + b"\n")
        with pytest.raises(ConnectionError, match="protocol"):
            client.receive(ours)
