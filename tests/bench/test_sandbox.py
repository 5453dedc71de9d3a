"""Hostile programs are bounded by themselves, too: they fork and allocate no more than a machine can bear."""

import os
import sys
import time
from pathlib import Path

import pytest

from dg_lsp.bench.sandbox.sandbox import LAYERS, Ending, Limits, Sandbox

# the wall time is long, for the machine may be busy: nothing here waits for it but what should
LIMITS = Limits(cpu_seconds=1, wall_seconds=60)
HELD = Sandbox(LIMITS).check()
"""Layers that this machine has."""


def of(*layers):
    """Those of the layers that this machine has."""
    return [layer for layer in layers if layer in HELD]


def run(program, *layers, limits=LIMITS):
    return Sandbox(limits, layers or LAYERS).run(program)


def test_a_correct_program_passes():
    outcome = run("def f(a): return a + 1\ndef check(f): assert f(1) == 2\ncheck(f)")
    assert outcome.ending is Ending.PASSED
    assert outcome.passes
    assert outcome.layers == HELD
    assert outcome.seconds > 0


@pytest.mark.parametrize(
    ("program", "ending", "detail"),
    [
        pytest.param("assert 1 == 2, 'no'", "failed", "AssertionError: no", id="a failed assertion"),
        pytest.param("def f(:", "failed", "SyntaxError", id="a syntax error"),
        pytest.param("import sys\nsys.exit(0)", "failed", "SystemExit", id="an exit is no end"),
        pytest.param("import os\nos._exit(0)", "crashed", "", id="an exit of the process is no end"),
        pytest.param("def f(): f()\nf()", "failed", "RecursionError", id="recursion without an end"),
        pytest.param("input()", "failed", "EOFError", id="there is no standard input"),
        pytest.param("import numpy", "failed", "ModuleNotFoundError", id="the standard library alone"),
        pytest.param("import dg_lsp.engine.engine", "failed", "", id="not even ourselves"),
        pytest.param("raise KeyboardInterrupt", "failed", "KeyboardInterrupt", id="whatever it raises"),
        pytest.param("raise ValueError('\\n' * 999 + 'a' * 999)", "failed", "ValueError: aaa", id="a long story"),
    ],
)
def test_a_wrong_program_fails(program, ending, detail):
    outcome = run(program)
    assert outcome.ending.value == ending
    assert not outcome.passes
    assert detail in outcome.detail
    assert len(outcome.detail) <= 200


def test_a_program_has_nothing_but_a_folder_that_is_gone_afterwards(tmp_path):
    seen = "; ".join(
        (
            "import os, sys",
            "assert set(os.environ) <= {'LC_CTYPE'}",  # Python's own
            "assert os.listdir() == ['program.py']",
            "open('a', 'w').write('x'); os.mkdir('b'); os.rename('a', 'b/c')",
            "assert open('b/c').read() == 'x'",
            "assert not any('packages' in path for path in sys.path)",
            "raise LookupError(os.getcwd())",
        )
    )
    outcome = run(seen)
    assert outcome.detail.startswith("LookupError: ")
    assert not Path(outcome.detail.removeprefix("LookupError: ")).exists()


def test_the_environment_stays_outside(monkeypatch):
    monkeypatch.setenv("SECRET", "1")
    assert run("import os\nassert 'SECRET' not in os.environ").passes


@pytest.mark.parametrize("loop", ["while True: pass", "sum(range(10**18))"], ids=["in Python", "in C"])
def test_an_endless_loop_is_stopped(loop):
    outcome = run(loop)
    assert outcome.ending is Ending.TIMEOUT
    assert outcome.seconds < 60


def test_a_loop_that_hears_nothing_is_stopped():
    deaf = "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True:\n try:\n  pass\n except: pass"
    assert run(deaf).ending is Ending.TIMEOUT


def test_waiting_without_an_end_is_stopped():
    limits = Limits(wall_seconds=3)
    assert run("import time\ntime.sleep(1000)", limits=limits).ending is Ending.TIMEOUT


FORKS = "import os, time\nfor _ in range(4): os.fork()\n"
"""Sixteen processes, then no more."""


@pytest.mark.parametrize("layer", of("seccomp", "audit"))
def test_a_forking_loop_is_stopped_by(layer):
    outcome = run(FORKS, layer)
    assert outcome.ending is Ending.FAILED
    assert "PermissionError" in outcome.detail


def test_a_forking_loop_is_stopped():
    assert run(FORKS).ending is Ending.FAILED


def processes_with(mark):
    """Ids of processes whose open files or working directory name `mark`."""
    if not Path("/proc/self").exists():
        return []
    return [int(path.name) for path in Path("/proc").glob("[0-9]*") if mark in _folder(path)]


def _folder(path):
    try:
        return str((path / "cwd").readlink())
    except OSError:
        return ""


ESCAPES = """
import os, time
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(30)
        os._exit(0)
raise LookupError(os.getcwd())
"""
"""Three processes in sessions of their own, which end by themselves after half a minute."""


@pytest.mark.parametrize("layer", of("namespaces"))
def test_processes_that_ran_away_are_ended_by(layer):
    outcome = run(ESCAPES, layer)
    folder = outcome.detail.removeprefix("LookupError: ")
    assert folder.startswith(os.sep)
    until = time.monotonic() + 20  # well before they would end themselves
    while processes_with(folder) and time.monotonic() < until:
        time.sleep(0.05)
    assert not processes_with(folder)


def test_a_process_in_the_same_group_does_not_stay():
    outcome = run("import os, time\nif os.fork() == 0: time.sleep(30)\nraise LookupError(os.getcwd())", "limits")
    if outcome.detail.startswith("LookupError"):  # who is not root may not fork here
        folder = outcome.detail.removeprefix("LookupError: ")
        until = time.monotonic() + 20
        while processes_with(folder) and time.monotonic() < until:
            time.sleep(0.05)
        assert not processes_with(folder)
    else:
        assert "BlockingIOError" in outcome.detail


@pytest.mark.parametrize("layer", ["limits", None], ids=["limits alone", "all layers"])
def test_ten_gigabytes_are_refused(layer):
    if sys.platform == "linux":
        outcome = run("bytearray(10 * 2**30)", *([layer] if layer else []))
        assert outcome.ending is Ending.MEMORY


def successes(tries, *layers, **names):
    """Names of the tries that were not refused, all made by one program, which also gets `names`."""
    program = f"""
import os
names, done = {names!r}, []
names["os"] = os
for name, source in {tries!r}.items():
    try:
        exec(source, names)
        done.append(name)
    except OSError:
        pass
raise LookupError(done)
"""
    outcome = run(program, *layers)
    assert outcome.detail.startswith("LookupError: ["), outcome.detail
    return outcome.detail.removeprefix("LookupError: ")


WRITES = {
    "a file": "open(path, 'w').write('x')",
    "the system's own open": "os.write(os.open(path, os.O_WRONLY | os.O_CREAT), b'x')",
    "a folder": "os.mkdir(path)",
    "a file moved out": "open('a', 'w').write('x'); os.rename('a', path)",
    "a link": "open('a', 'w').write('x'); os.symlink(os.path.realpath('a'), path)",
    "through a link": "os.symlink(os.path.dirname(path), 'b'); open('b/stray', 'w').write('x')",
    "up and over": "open(os.path.relpath(path), 'w').write('x')",
    "appended": "open(notes, 'a').write('x')",
    "removed": "os.remove(notes)",
    "cut": "os.truncate(notes, 0)",
}


@pytest.mark.parametrize("layer", [*of("namespaces", "landlock", "audit"), None])
def test_nothing_outside_of_its_folder_is_changed(tmp_path, layer):
    notes = tmp_path / "notes"
    notes.write_text("mine")
    layers = [layer] if layer else []
    assert successes(WRITES, *layers, path=str(tmp_path / "stray"), notes=str(notes)) == "[]"
    assert list(tmp_path.iterdir()) == [notes]
    assert notes.read_text() == "mine"


def test_the_tries_would_succeed_without_the_layers(tmp_path):
    notes = tmp_path / "notes"
    notes.write_text("mine")
    tries = {name: WRITES[name] for name in ("a file", "appended", "cut", "removed")}
    assert successes(tries, "limits", path=str(tmp_path / "stray"), notes=str(notes)) == str(list(tries))


METADATA = {"mode": "os.chmod(path, 0o777)", "time": "os.utime(path, (1, 1))"}


@pytest.mark.parametrize("layer", [*of("seccomp", "namespaces", "audit"), None])
def test_modes_and_times_of_other_files_stay_as_they_are(tmp_path, layer):
    path = tmp_path / "notes"
    path.write_text("mine")
    before = path.stat()
    assert successes(METADATA, *([layer] if layer else []), path=str(path)) == "[]"
    assert (path.stat().st_mode, path.stat().st_mtime) == (before.st_mode, before.st_mtime)


@pytest.mark.parametrize("layer", of("landlock"))
def test_other_files_cannot_even_be_read(tmp_path, layer):
    path = tmp_path / "secret"
    path.write_text("mine")
    assert "PermissionError" in run(f"open({str(path)!r}).read()", layer).detail


@pytest.mark.parametrize("layer", [*of("seccomp", "namespaces", "audit"), None])
def test_a_socket_reaches_nobody(layer):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        program = f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 5)"
        assert run(program, "limits").passes  # it would reach somebody
        outcome = run(program, *([layer] if layer else []))
    assert outcome.ending is Ending.FAILED


WAYS_OUT = {
    "a local socket": "import socket; socket.socket(socket.AF_UNIX)",
    "a shell": "if os.system('true'): raise OSError",
    "a program": "import subprocess; subprocess.run(['true'])",
    "another program instead": "os.execv('/bin/true', ['true'])",
    "a signal to us": "os.kill(os.getppid(), 0)",
}


@pytest.mark.parametrize("layer", [*of("seccomp", "audit"), None])
def test_other_ways_out_are_refused(layer):
    assert successes(WAYS_OUT, *([layer] if layer else [])) == "[]"


@pytest.mark.parametrize("layer", of("seccomp"))  # Python's audit hook hears of threads from 3.12 on
def test_a_thread_is_refused(layer):
    assert run("import threading\nthreading.Thread(target=print).start()", layer).ending is Ending.FAILED


def test_what_it_prints_and_writes_is_bounded():
    limits = Limits(file_bytes=1 << 16)
    assert "File too large" in run("while True: print('x' * 1000)", limits=limits).detail
    assert "File too large" in run("open('a', 'wb').write(bytes(1 << 17))", limits=limits).detail


def test_a_report_that_the_program_wrote_itself_is_none():
    forged = "import os\nfor fd in range(3, 20):\n try: os.write(fd, b'passed\\n')\n except OSError: pass\nassert 0"
    assert run(forged).ending is Ending.CRASHED
