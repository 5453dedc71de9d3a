"""Runs model-written code in bubblewrap (`bwrap`): one program alone, or a command in a copy of a folder.

A program gets the standard library of this Python, an empty environment, a small empty directory in memory, and its
own namespaces: no network, no home, no other processes, and /usr and Python read-only. A command of the user needs its
tools, so it reads what the user can read, and has the user's environment; it writes only into the copy and into
directories in memory. A filter of system calls denies both a user namespace, in which they would have all capabilities,
and sockets of other families than those of the network, which would lead to services of this machine. Resource limits
bound memory, processes and file sizes, and for a program CPU time and open files. Everything that was started is
killed together with it.

Not covered: bugs of the kernel, and programs that pretend to succeed, because the verdict comes from the same process.
"""

import errno
import json
import os
import platform
import random
import select
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from dg_lsp.errors import SandboxError
from dg_lsp.system import system_free

INSTALL = "on Debian and Ubuntu, run: sudo apt-get install bubblewrap"
_WORK = "/work"
_SYSTEM = ("/usr", "/lib", "/lib64", "/lib32", "/nix/store", "/gnu/store", "/etc/ld.so.cache", "/etc/localtime")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")
_FREE_USER_IDS = range(61184, 65520)  # ids that systemd reserves for temporary users
_PASSED = "passed"
# limits of a program
CPU_SECONDS = 5
WALL_SECONDS = 15.0
_MEMORY_BYTES = 1 << 30  # of the address space, which includes the interpreter
_FILE_BYTES = 1 << 20
_DISK_BYTES = 1 << 24  # of its directory in memory
_NUM_OPEN_FILES = 64

_CALLS = {"x86_64": (0xC000003E, 272, 56, 41), "aarch64": (0xC00000B7, 97, 220, 198)}
"""By machine: its number in Linux's audit.h, and those of the system calls `unshare`, `clone` and `socket`."""
_CLONE3 = 435
_IO_URING = 425
_FOREIGN_CALLS = 0x40000000
_NEW_USER = 0x10000000
# instructions, of Linux's bpf_common.h
_LOAD = 0x20
_EQUAL = 0x15
_AT_LEAST = 0x35
_ANY_BIT = 0x45
_RETURN = 0x06
# places in Linux's `struct seccomp_data`
_NUMBER = 0
_ARCHITECTURE = 4
_ARGUMENT = 16
# results, of Linux's seccomp.h
_ALLOW = 0x7FFF0000
_FAIL = 0x00050000

# Runs inside the sandbox: reads the program from standard input and writes `_PASSED` or the exception at its end.
_BOOTSTRAP = """
import json, os, resource, sys, types

order = json.loads(sys.argv[1])
source = sys.stdin.buffer.read().decode("utf-8", "replace")
if order["user"]:
    os.setgroups([])
    os.setresgid(*[order["user"]] * 3)
    os.setresuid(*[order["user"]] * 3)
for name, limits in order["limits"].items():
    resource.setrlimit(getattr(resource, name), limits)
report, nothing = os.dup(1), os.open(os.devnull, os.O_RDWR)
for descriptor in range(3):
    os.dup2(nothing, descriptor)
module = sys.modules["program"] = types.ModuleType("program")
verdict = "passed"
try:
    exec(compile(source, "program.py", "exec"), module.__dict__)
except BaseException as error:
    verdict = " ".join(f"{type(error).__name__}: {error}".split())[:200]
os.write(report, verdict.encode("utf-8", "replace"))
os._exit(0)
"""

_SHELL = """
ulimit -c 0; ulimit -d {data}; ulimit -f 4194304
ulimit -p 4096 2>/dev/null || ulimit -u 4096 2>/dev/null
{command}
"""
"""Limits of core files, memory, file sizes (2 or 4 GiB by the shell) and processes, then the command itself."""
MAX_OUTPUT_BYTES = 1 << 18
"""Bytes at the end of the output of a command that are kept."""
_POLL_SECONDS = 0.05

_CORRECT = """
import bisect, collections, datetime, decimal, fractions, functools, hashlib, heapq, itertools, math, statistics, typing
assert hashlib.md5(b"a").hexdigest().startswith("0cc1")
open("own", "w").write("x")
assert open("own").read() == "x"
"""


def _call_filter() -> bytes:
    """A program for seccomp: it denies user namespaces, other sockets, and the system calls of other architectures.

    The C library uses `clone` where the kernel lacks `clone3`, whose flags a filter cannot see. Without `io_uring` no
    socket is made past the filter.
    """
    architecture, unshare, clone, make_socket = _CALLS[platform.machine()]
    steps = (  # instruction, steps to skip if it holds and if it does not, operand
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 0, 14, architecture),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 12, 0, _FOREIGN_CALLS),
        (_EQUAL, 12, 0, _CLONE3),
        (_EQUAL, 11, 0, _IO_URING),
        (_EQUAL, 4, 0, make_socket),
        (_EQUAL, 1, 0, unshare),
        (_EQUAL, 0, 6, clone),
        (_LOAD, 0, 0, _ARGUMENT),
        (_ANY_BIT, 5, 4, _NEW_USER),
        (_LOAD, 0, 0, _ARGUMENT),
        (_EQUAL, 2, 0, socket.AF_INET),  # the families that belong to the namespace of the network
        (_EQUAL, 1, 0, socket.AF_INET6),
        (_EQUAL, 0, 1, socket.AF_NETLINK),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _FAIL | errno.EPERM),
        (_RETURN, 0, 0, _FAIL | errno.ENOSYS),
    )
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How a command ended."""

    code: int | None  # exit status; None if it was killed at its time limit
    output: str  # the end of standard output and standard error together
    seconds: float


class Sandbox:
    """Runs one program or command after the other."""

    def __init__(self, *, option: str = "--execute") -> None:
        """Checks that bubblewrap works and that a correct program passes. Errors name the option that needs it.

        Raises SandboxError: bubblewrap is missing or cannot create namespaces on this machine.
        """
        program = shutil.which("bwrap")
        if sys.platform != "linux" or platform.machine() not in _CALLS:
            system = f"Linux on {' or '.join(_CALLS)}"
            raise SandboxError(f"{option} runs code of a model in bubblewrap, which needs {system}: use a container")
        if program is None:
            raise SandboxError(f"{option} needs bubblewrap: {INSTALL}")
        self._bwrap = program
        if reason := self.failure(_CORRECT):
            problem = f"{option} needs a bubblewrap 0.7 or later that can create namespaces"
            raise SandboxError(f"{problem}: {reason}")

    def failure(self, program: str) -> str:
        """Runs a program; returns why it fails, or the empty string if it runs to its end. No process is left.

        Raises SandboxError: bubblewrap cannot be started.
        """
        with tempfile.TemporaryFile() as source:
            source.write(program.encode("utf-8", "replace"))
            source.seek(0)
            result = self._execute(*_arguments(), WALL_SECONDS, source=source, environment={})
        if result.code is None:
            return "timeout"
        verdict = " ".join(result.output[:1000].split())
        if result.code == 0 and verdict == _PASSED:
            return ""
        return verdict or f"it ends with the code {result.code}"  # 128 + N after signal N

    def run_command(
        self,
        command: str,
        folder: Path,
        copy: Path,
        *,
        seconds: float,
        read_only: Sequence[Path] = (),
        is_stopped: Callable[[], bool] = bool,
    ) -> CommandResult:
        """Runs a command of the shell in a folder, in whose place it sees the copy and may change it.

        It sees the folders in `read_only` too, whose paths are relative. None of its processes is left afterwards.

        Raises:
            SandboxError: bubblewrap cannot be started.
            CancelledError: `is_stopped` became true.
        """
        # root could change settings of the kernel in a /proc that is not read-only
        mounts = ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--remount-ro", "/proc", "--tmpfs", "/tmp"]
        mounts += ["--bind", str(copy), str(folder), "--chdir", str(folder)]
        for path in read_only:
            mounts += ["--ro-bind", str(folder / path), str(folder / path)]
        shell = ["/bin/sh", "-c", _SHELL.format(data=system_free() // 1024, command=command)]
        return self._execute([*_namespaces(), *mounts], shell, seconds, is_stopped=is_stopped)

    def _execute(
        self,
        options: Sequence[str],
        program: Sequence[str],
        seconds: float,
        *,
        source: IO[bytes] | int = subprocess.DEVNULL,
        environment: Mapping[str, str] | None = None,
        is_stopped: Callable[[], bool] = bool,
    ) -> CommandResult:
        """Runs a program in bubblewrap; `source` is its standard input."""
        start = time.monotonic()
        output = b""
        with tempfile.TemporaryFile(buffering=0) as calls:
            calls.write(_call_filter())
            calls.seek(0)
            try:
                process = subprocess.Popen(
                    [self._bwrap, *options, "--seccomp", str(calls.fileno()), "--", *program],
                    pass_fds=[calls.fileno()],
                    stdin=source,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    start_new_session=True,
                )
            except OSError as error:
                raise SandboxError(f"cannot start bubblewrap ({error}): {INSTALL}") from error
        with process:
            assert process.stdout is not None
            pipes = [process.stdout]
            try:
                while (pipes or process.poll() is None) and time.monotonic() - start < seconds:
                    if is_stopped():
                        raise CancelledError
                    if select.select(pipes, [], [], _POLL_SECONDS)[0]:
                        piece = os.read(process.stdout.fileno(), 1 << 16)
                        output = (output + piece)[-MAX_OUTPUT_BYTES:]
                        pipes = pipes if piece else []
                code = process.poll()
            finally:
                process.kill()  # with it the whole PID namespace
        return CommandResult(code, output.decode("utf-8", "replace"), time.monotonic() - start)


def _arguments() -> tuple[list[str], list[str]]:
    """The options of bubblewrap for a program, and the Python that runs it."""
    # the limit on processes does not apply to root: as root the program runs as a temporary user
    user = random.choice(_FREE_USER_IDS) if os.geteuid() == 0 else 0
    limits = {
        "RLIMIT_CPU": (CPU_SECONDS, CPU_SECONDS + 1),
        "RLIMIT_AS": (_MEMORY_BYTES, _MEMORY_BYTES),
        "RLIMIT_FSIZE": (_FILE_BYTES, _FILE_BYTES),
        "RLIMIT_NOFILE": (_NUM_OPEN_FILES, _NUM_OPEN_FILES),
        "RLIMIT_NPROC": (1, 1),
        "RLIMIT_CORE": (0, 0),
    }
    order = json.dumps({"user": user, "limits": limits})
    work = ["--size", str(_DISK_BYTES), "--perms", "1777", "--tmpfs", _WORK, "--chdir", _WORK]
    python = [str(Path(sys.executable).resolve()), "-I", "-S", "-B", "-X", "utf8", "-c", _BOOTSTRAP, order]
    # a change of user ends these capabilities
    return [*_namespaces("CAP_SETUID", "CAP_SETGID"), "--clearenv", *_mounts(), *work], python


def _namespaces(*capabilities: str) -> Iterator[str]:
    """Namespaces of their own, and for root no capabilities but these."""
    yield from ("--die-with-parent", "--new-session")
    if os.geteuid() == 0:
        # without a user namespace, in which no other user exists
        yield from ("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try")
        yield from ("--cap-drop", "ALL")
        for capability in capabilities:
            yield from ("--cap-add", capability)
    else:
        yield "--unshare-all"


def _mounts() -> Iterator[str]:
    """The system's libraries, this Python and three devices."""
    prefixes = {Path(sys.base_prefix), Path(sys.base_exec_prefix), Path(sys.executable).resolve().parents[1]}
    outside = [prefix for prefix in prefixes if not prefix.is_relative_to("/usr")]
    # without --dir, bubblewrap makes parent directories unreadable for other users
    for parent in ("/dev", "/etc", *(parent for prefix in outside for parent in reversed(prefix.parents[:-1]))):
        yield from ("--dir", str(parent))
    for path in (*map(Path, _SYSTEM), *outside):
        if path.is_symlink():
            yield from ("--symlink", str(path.readlink()), str(path))
        else:
            yield from ("--ro-bind-try", str(path), str(path))
    for name in _DEVICES:
        yield from ("--dev-bind", name, name)
