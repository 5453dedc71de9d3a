"""Runs model-written programs in bubblewrap (`bwrap`), one process for each.

A program gets the standard library of this Python, an empty environment, a small empty directory in memory, and its
own namespaces: no network, no home, no other processes, and /usr and Python read-only. A filter of system calls
denies it a user namespace, in which it would have all capabilities. Resource limits bound CPU time, memory, processes,
open files and file sizes. Everything that it started is killed together with it.

Not covered: bugs of the kernel, and programs that pretend to succeed, because the verdict comes from the same process.
"""

import errno
import json
import os
import platform
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dg_lsp.errors import SandboxError

INSTALL = "on Debian and Ubuntu, run: sudo apt-get install bubblewrap"
_WORK = "/work"
_SYSTEM = ("/usr", "/lib", "/lib64", "/lib32", "/nix/store", "/gnu/store", "/etc/ld.so.cache", "/etc/localtime")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")
_FREE_USER_IDS = range(61184, 65520)
"""Ids that systemd reserves for temporary users."""
_PASSED = "passed"

_CALLS = {"x86_64": (0xC000003E, 272, 56), "aarch64": (0xC00000B7, 97, 220)}
"""By machine: its number in Linux's audit.h, and those of the system calls `unshare` and `clone`."""
_CLONE3 = 435
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
_FLAGS = 16
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

_CORRECT = """
import bisect, collections, datetime, decimal, fractions, functools, hashlib, heapq, itertools, math, statistics, typing
assert hashlib.md5(b"a").hexdigest().startswith("0cc1")
open("own", "w").write("x")
assert open("own").read() == "x"
"""


def _call_filter() -> bytes:
    """A program for seccomp: it denies user namespaces, and the system calls of other architectures.

    The C library uses `clone` where the kernel lacks `clone3`, whose flags a filter cannot see.
    """
    architecture, unshare, clone = _CALLS[platform.machine()]
    steps = (  # instruction, steps to skip if it holds and if it does not, operand
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 0, 8, architecture),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 6, 0, _FOREIGN_CALLS),
        (_EQUAL, 6, 0, _CLONE3),
        (_EQUAL, 1, 0, unshare),
        (_EQUAL, 0, 2, clone),
        (_LOAD, 0, 0, _FLAGS),
        (_ANY_BIT, 1, 0, _NEW_USER),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _FAIL | errno.EPERM),
        (_RETURN, 0, 0, _FAIL | errno.ENOSYS),
    )
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


@dataclass(frozen=True, slots=True)
class Limits:
    """Resources of one program. Its address space includes the interpreter; its directory is in memory."""

    cpu_seconds: int = 5
    wall_seconds: float = 15.0
    memory_bytes: int = 1 << 30
    file_bytes: int = 1 << 20
    disk_bytes: int = 1 << 24
    num_open_files: int = 64

    def rlimits(self) -> dict[str, tuple[int, int]]:
        """Soft and hard limit by the name in `resource`."""
        return {
            "RLIMIT_CPU": (self.cpu_seconds, self.cpu_seconds + 1),
            "RLIMIT_AS": (self.memory_bytes,) * 2,
            "RLIMIT_FSIZE": (self.file_bytes,) * 2,
            "RLIMIT_NOFILE": (self.num_open_files,) * 2,
            "RLIMIT_NPROC": (1, 1),
            "RLIMIT_CORE": (0, 0),
        }


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """What became of one program."""

    passes: bool  # true if the program ran to its end
    reason: str = ""  # the exception, the signal, or another reason why the program failed


class Sandbox:
    """Runs one program after the other."""

    def __init__(self, limits: Limits | None = None) -> None:
        """Checks that bubblewrap works and that a correct program passes.

        Raises:
            SandboxError: bubblewrap is missing or cannot create namespaces on this machine.
        """
        self._limits = limits or Limits()
        program = shutil.which("bwrap")
        if program is None:
            raise SandboxError(f"--execute needs bubblewrap: {INSTALL}")
        if platform.machine() not in _CALLS:
            raise SandboxError(f"--execute runs on {' and '.join(_CALLS)} only, this machine is {platform.machine()}")
        self._bwrap = program
        outcome = self.run(_CORRECT)
        if not outcome.passes:
            message = "--execute needs a bubblewrap 0.7 or later that can create namespaces"
            raise SandboxError(f"{message}: {outcome.reason}")

    def run(self, program: str) -> ProgramResult:
        """Runs a program to its end. None of its processes is left afterwards.

        Raises:
            SandboxError: bubblewrap cannot be started.
        """
        # files, not pipes: the limit on file sizes bounds what a program writes into them
        temporary = tempfile.TemporaryFile
        with temporary() as report, temporary() as errors, temporary(buffering=0) as calls:
            calls.write(_call_filter())
            calls.seek(0)
            try:
                # at the timeout or an interruption it kills bubblewrap, and with it the whole PID namespace
                code = subprocess.run(
                    self._command(calls.fileno()),
                    pass_fds=[calls.fileno()],
                    input=program.encode("utf-8", "replace"),
                    stdout=report,
                    stderr=errors,
                    env={},
                    start_new_session=True,
                    timeout=self._limits.wall_seconds,
                    check=False,
                ).returncode
            except subprocess.TimeoutExpired:
                return ProgramResult(False, "timeout")
            except OSError as error:
                raise SandboxError(f"cannot start bubblewrap ({error}): {INSTALL}") from error
            report.seek(0)
            errors.seek(0)
            texts = [" ".join(file.read(1000).decode("utf-8", "replace").split()) for file in (report, errors)]
        verdict, message = texts
        if code:
            # bubblewrap returns 128 + N after signal N
            is_signal = code - 128 in set(signal.Signals)
            return ProgramResult(False, signal.Signals(code - 128).name if is_signal else message or "crashed")
        return ProgramResult(verdict == _PASSED, "" if verdict == _PASSED else verdict or "no result")

    def _command(self, call_filter: int) -> list[str]:
        # the limit on processes does not apply to root: as root the program runs as a temporary user
        user = random.choice(_FREE_USER_IDS) if os.geteuid() == 0 else 0
        order = json.dumps({"user": user, "limits": self._limits.rlimits()})
        work = ["--size", str(self._limits.disk_bytes), "--perms", "1777", "--tmpfs", _WORK, "--chdir", _WORK]
        python = [str(Path(sys.executable).resolve()), "-I", "-S", "-B", "-X", "utf8", "-c", _BOOTSTRAP, order]
        seccomp = ["--seccomp", str(call_filter)]
        return [self._bwrap, *_namespaces(user), *_mounts(), *work, *seccomp, "--", *python]


def _namespaces(user: int) -> Iterator[str]:
    yield from ("--die-with-parent", "--new-session", "--clearenv")
    if user:
        # without a user namespace, in which no other user exists; all capabilities go with the change of user
        yield from ("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try")
        yield from ("--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID")
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
