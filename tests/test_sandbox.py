"""The hostile programs fork and allocate little enough to be harmless outside the sandbox too."""

import os
import shlex
import socket
import subprocess
import sys
from concurrent.futures import CancelledError
from pathlib import Path
from unittest.mock import patch

import psutil
import pytest
from http_server import wait_until

from dg_lsp.errors import SandboxError
from dg_lsp.sandbox import MAX_OUTPUT_BYTES, Sandbox

PYTHON = Path(sys.executable).resolve()  # not in a virtual environment, which may be in /tmp
# the wall time is long, because the machine may be busy; only tests of the wall time wait for it
WALL_SECONDS = 60


ENDLESS = "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass"


@pytest.fixture(scope="module")
def run(bwrap):
    """Runs a program and checks that none of its processes is left."""

    def call(program, wall_seconds=WALL_SECONDS):
        with patch.multiple("dg_lsp.sandbox", CPU_SECONDS=1, WALL_SECONDS=wall_seconds):
            reason = bwrap.failure(program)
        assert not [child for child in psutil.Process().children(recursive=True) if "bwrap" in child.name()]
        return reason

    return call


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        pytest.param("assert 1 == 2, 'no'", "AssertionError: no", id="a failed assertion"),
        pytest.param("def f(:", "SyntaxError", id="a syntax error"),
        pytest.param("import os\nos._exit(0)", "the code 0", id="an immediate exit"),
        pytest.param("import os\nos.abort()", "the code 134", id="a crash"),
        pytest.param("input()", "EOFError", id="no standard input"),
        pytest.param("import numpy", "ModuleNotFoundError", id="no other packages"),
        pytest.param("raise ValueError('\\n' * 999 + 'a' * 999)", "ValueError: aaa", id="a long message"),
        pytest.param("bytearray(10 * 2**30)", "MemoryError", id="10 GB"),
        pytest.param(ENDLESS, "the code 137", id="a loop that ignores signals"),
        pytest.param("import os\nfor _ in range(4): os.fork()", "BlockingIOError", id="a fork bomb"),
        pytest.param("open('a', 'wb').write(bytes(1 << 21))", "File too large", id="a large file"),
        pytest.param("for i in range(99): open(str(i), 'wb').write(bytes(1 << 19))", "No space", id="many"),
    ],
)
def test_a_program_fails_for_a_reason(run, program, reason):
    failure = run(program)
    assert reason in failure
    assert len(failure) <= 1000


def test_a_waiting_program_is_stopped(run):
    assert run("import time\ntime.sleep(1000)", wall_seconds=1) == "timeout"


def test_a_program_has_an_empty_environment_and_directory(run, monkeypatch):
    monkeypatch.setenv("SECRET", "1")
    program = """
import os, sys
assert set(os.environ) <= {"LC_CTYPE", "PWD"}, os.environ
assert os.listdir() == [] and os.getuid() != 0
assert not any("packages" in path for path in sys.path)
open("a", "w").write("x"); os.mkdir("b"); os.rename("a", "b/c")
assert open("b/c").read() == "x"
assert not os.path.exists("/proc") and not os.path.exists("/home") and not os.path.exists("/etc/passwd")
"""
    assert run(program if os.getuid() == 0 else program.replace("os.getuid() != 0", "True")) == ""


ATTACKS = {
    "read": "open(path).read()",
    "write": "open(path, 'a').write('x')",
    "write beside": "open(path + '2', 'w').write('x')",
    "remove": "os.remove(path)",
    "cut": "os.truncate(path, 0)",
    "change the mode": "os.chmod(path, 0o777)",
    "write into the system": "open('/usr/stray', 'w').write('x')",
    "write into Python": "open(os.path.dirname(os.__file__) + '/stray.py', 'w').write('x')",
    "make a device": "os.mknod('device', 0o666 | 0x2000, os.makedev(1, 1)); open('device').read()",
    "become root": "os.setuid(0); open(path).read()",
    "signal the parent": "os.kill(os.getppid(), 9); raise SystemExit if os.getppid() != 1 else OSError",
    "signal others": "os.kill(pid, 0)",
    "make a user namespace": "import ctypes\nif ctypes.CDLL(None).unshare(0x10000000): raise OSError",
    "connect": "import socket; socket.create_connection(('127.0.0.1', port), 5)",
    "connect outside": "import socket; socket.create_connection(('1.1.1.1', 80), 5)",
    "connect to a service": "import socket; socket.socket(socket.AF_UNIX).connect(path + '.socket')",
    "connect to the host of a virtual machine": "import socket; socket.socket(socket.AF_VSOCK)",
    "queue system calls": "import ctypes\nif ctypes.CDLL(None).syscall(425, 1, bytes(120)) < 0: raise OSError",
}


ATTACKER = """
import os
names, done = {names!r}, []
names["os"] = os
for name, source in {attacks!r}.items():
    try:
        exec(source, names)
        done.append(name)
    except OSError:
        pass
raise LookupError(done)
"""


@pytest.fixture
def targets(tmp_path):
    """What `ATTACKER` aims at: a file, which has to stay as it is, this process, and two services."""
    path = tmp_path / "notes"
    path.write_text("mine")
    before = path.stat()
    service = socket.socket(socket.AF_UNIX)
    with socket.create_server(("127.0.0.1", 0)) as server, service:
        service.bind(f"{path}.socket")
        service.listen()
        yield {"path": str(path), "pid": os.getpid(), "port": server.getsockname()[1]}
    Path(f"{path}.socket").unlink()
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_text() == "mine"
    assert (path.stat().st_mode, path.stat().st_mtime) == (before.st_mode, before.st_mtime)


def test_attacks_from_inside_are_denied(run, targets):
    assert run(ATTACKER.format(names=targets, attacks=ATTACKS)) == "LookupError: []"


def test_a_program_cannot_write_its_own_report(run):
    forged = "import os\nfor fd in range(3, 20):\n try: os.write(fd, b'passed\\n')\n except OSError: pass\nassert 0"
    assert run(forged)


def test_the_sandbox_ends_with_its_parent(bwrap):
    script = "from dg_lsp import sandbox\nsandbox.WALL_SECONDS = 600\nbox = sandbox.Sandbox()\n"
    script += "print(flush=True)\nbox.failure('import time; time.sleep(600)')"
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    parent.stdout.readline()

    def processes():
        return psutil.Process(parent.pid).children(recursive=True)

    # bubblewrap's second process ties its life to its parent's only after it has started the program
    wait_until(lambda: [process.name() == "bwrap" for process in processes()] == [True, True, False])
    children = processes()
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_until(lambda: not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children))


def test_a_bubblewrap_that_fails_is_quoted(monkeypatch, tmp_path):
    program = tmp_path / "bwrap"
    program.write_text("#!/bin/sh\necho 'bwrap: No permissions to create a new namespace' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr("shutil.which", lambda _: str(program))
    with pytest.raises(SandboxError, match=r"can create namespaces: bwrap: No permissions"):
        Sandbox()
    monkeypatch.setattr("shutil.which", lambda _: str(tmp_path / "gone"))
    with pytest.raises(SandboxError, match="cannot start bubblewrap"):
        Sandbox()


@pytest.fixture
def folders(tmp_path_factory):
    """A folder outside of /tmp's copy, and a copy of it."""
    folder, copy = tmp_path_factory.mktemp("folder"), tmp_path_factory.mktemp("copy")
    (folder / "a").write_text("of the folder")
    (copy / "a").write_text("of the copy")
    (folder / "shared").mkdir()
    (folder / "shared/b").write_text("shared")
    return folder, copy


@pytest.fixture
def run_command(bwrap, folders):
    """Runs a command in the folder of `folders`; none of its processes is left."""

    def call(command, *, seconds=60, **options):
        result = bwrap.run_command(command, *folders, seconds=seconds, read_only=(Path("shared"),), **options)
        assert not [child for child in psutil.Process().children(recursive=True) if "bwrap" in child.name()]
        return result

    return call


@pytest.mark.parametrize(
    ("command", "code", "output"),
    [
        pytest.param("cat a; pwd", 0, "of the copy{folder}\n", id="the copy stands in the place of the folder"),
        pytest.param("echo x > a && rm a && cat shared/b", 0, "shared", id="the copy is written"),
        pytest.param("echo x > shared/b", 2, "Read-only file system", id="other folders are not written"),
        pytest.param("echo x > /etc/stray", 2, "Read-only file system", id="nothing is written outside"),
        pytest.param("echo x > {folder}/../stray; ls /tmp", 0, "", id="not even in the real /tmp"),
        pytest.param("echo x > ~/stray", 2, "", id="nothing is written at home"),
        pytest.param("echo out; echo err >&2; exit 3", 3, "out\nerr\n", id="both outputs and the code"),
        pytest.param("echo $MINE", 0, "mine\n", id="the user's environment"),
        pytest.param("no-such-program", 127, "not found", id="an unknown command"),
        pytest.param("echo > /tmp/x && cat /tmp/x", 0, "\n", id="a directory for temporary files"),
        pytest.param("seq 1000000; echo end", 0, "1000000\nend\n", id="megabytes of output"),
        pytest.param("sleep 1000 & echo begun", 0, "begun", id="a process in the background"),
        pytest.param("cat", 0, "", id="no standard input"),
    ],
)
def test_a_command_runs_in_a_copy_of_its_folder(run_command, folders, monkeypatch, command, code, output):
    folder, _ = folders
    monkeypatch.setenv("MINE", "mine")
    result = run_command(command.format(folder=folder))
    assert (result.code, len(result.output) <= MAX_OUTPUT_BYTES) == (code, True)
    assert result.output.endswith(output.format(folder=folder)) or output in result.output
    assert sorted(path.name for path in folder.iterdir()) == ["a", "shared"]
    assert (folder / "a").read_text() == "of the folder"
    assert not (folder.parent / "stray").exists()


@pytest.mark.parametrize("command", ["sleep 1000", "exec >&- 2>&-; sleep 1000", "yes"])
def test_a_command_is_killed_at_its_time_limit(run_command, command):
    result = run_command(command, seconds=0.5)
    assert result.code is None
    assert result.seconds < 60


def test_a_command_ends_when_its_caller_stops_it(run_command):
    with pytest.raises(CancelledError):
        run_command("sleep 1000", is_stopped=lambda: True)


def test_a_command_reaches_neither_services_nor_the_network_nor_other_processes(run_command, targets):
    attacks = {name: source for name, source in ATTACKS.items() if name != "read"}  # it reads what the user can
    for setting in ("proc/sys/kernel/core_pattern", "proc/sysrq-trigger", "sys/kernel/mm/transparent_hugepage/enabled"):
        attacks[f"change {setting}"] = f"open('/{setting}', 'a')"
    script = ATTACKER.format(names=targets, attacks=attacks)
    result = run_command(f"exec {PYTHON} -c {shlex.quote(script)}")
    assert result.output.endswith("LookupError: []\n"), result.output


def test_a_command_may_use_a_server_of_its_own(run_command):
    script = "import socket; server = socket.create_server(('127.0.0.1', 0)); a, b = socket.socketpair()\n"
    script += "socket.create_connection(server.getsockname()).close()"
    result = run_command(f"{PYTHON} -c {shlex.quote(script)}")
    assert (result.code, result.output) == (0, "")
