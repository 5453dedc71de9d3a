"""Starts the sandboxed process, waits, and clears up after it. Runs none of the program itself."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import dg_lsp
from dg_lsp.errors import SandboxError

LAYERS = ("namespaces", "limits", "capabilities", "landlock", "seccomp", "audit")

_BOOT = """
import sys
sys.path.append(sys.argv[1])
from dg_lsp.bench.sandbox.inside import main
import json
sys.path.remove(sys.argv[1])
main(json.loads(sys.argv[2]))
"""
_MAX_REPORT = 65536
_OUTCOMES = ("passed", "failed", "memory")

_CORRECT = """
import bisect, collections, datetime, decimal, fractions, functools, hashlib, heapq, itertools, json, math, random, re
import statistics, string, sys, typing
assert hashlib.md5(b"a").hexdigest().startswith("0cc1")
open("own", "w").write("x")
assert open("own").read() == "x" and random.random() < 1
"""


class Ending(StrEnum):
    """How a program ended."""

    PASSED = "passed"
    """It ran to its end."""
    FAILED = "failed"
    """An exception: a failed assertion, a syntax error, something that the sandbox refuses, an exit."""
    TIMEOUT = "timeout"
    """Its CPU or wall time ran out, or the system killed it for another reason."""
    MEMORY = "memory"
    CRASHED = "crashed"
    """The process ended itself, or a signal did."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a program may use."""

    cpu_seconds: int = 5
    wall_seconds: float = 15.0
    memory_bytes: int = 1 << 30
    """Of address space, the interpreter's own included."""
    file_bytes: int = 1 << 20
    """Of each file, and of all that is printed."""
    num_files: int = 64
    """Open at a time."""

    def json(self) -> dict[str, int]:
        """By the names of `resource`."""
        return {
            "RLIMIT_CPU": self.cpu_seconds + 1,
            "RLIMIT_AS": self.memory_bytes,
            "RLIMIT_FSIZE": self.file_bytes,
            "RLIMIT_NOFILE": self.num_files,
            "RLIMIT_NPROC": 1,  # does not hold for root
            "RLIMIT_CORE": 0,
        }


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a program ended, and what held it."""

    ending: Ending
    detail: str
    """The exception, for a person; empty without one."""
    layers: tuple[str, ...]
    """That held it."""
    seconds: float
    """Wall time, the interpreter's start included."""

    @property
    def passes(self) -> bool:
        """It ran to its end."""
        return self.ending is Ending.PASSED


class Sandbox:
    """Runs one program after the other, each in a process and a directory of its own."""

    def __init__(self, limits: Limits | None = None, layers: tuple[str, ...] = LAYERS) -> None:
        self._limits = limits or Limits()
        self._layers = layers

    def run(self, program: str) -> Outcome:
        """How the program ends. Nothing that it started is left when this returns.

        Raises:
            SandboxError: the process could not be started.
        """
        start = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="dg-lsp-", ignore_cleanup_errors=True) as folder:
            Path(folder, "program.py").write_text(program, encoding="utf-8", errors="replace")
            receiving, sending = os.pipe()
            try:
                is_late, code = self._wait(folder, sending)
                os.set_blocking(receiving, False)
                report = _report(receiving)
            finally:
                os.close(receiving)
        layers = tuple(report.get("layers", ()))
        seconds = time.perf_counter() - start
        ending = _ending(report, code, is_late=is_late)
        return Outcome(ending, report.get("detail", "") or _signal_name(code), layers, seconds)

    def check(self) -> tuple[str, ...]:
        """The layers that hold on this machine.

        Raises:
            SandboxError: a correct program does not pass here, so that no verdict would mean anything.
        """
        outcome = self.run(_CORRECT)
        if not outcome.passes:
            raise SandboxError(
                f"a correct program does not pass in the sandbox of this machine ({outcome.ending}, "
                f"{outcome.detail or 'no detail'}): leave --execute out"
            )
        return outcome.layers

    def _wait(self, folder: str, sending: int) -> tuple[bool, int]:
        """Whether the wall time ran out, and the process's exit code; closes `sending`."""
        order = json.dumps({"pipe": sending, "layers": self._layers, "limits": self._limits.json()})
        root = str(Path(dg_lsp.__file__).parents[1])
        command = [sys.executable, "-I", "-S", "-B", "-X", "utf8", "-c", _BOOT, root, order]
        # a file takes what is printed: its size is limited, and nobody has to read along
        with tempfile.TemporaryFile() as printed:
            try:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=printed,
                    stderr=subprocess.STDOUT,
                    cwd=folder,
                    env={},
                    pass_fds=(sending,),
                    start_new_session=True,
                )
            except (OSError, ValueError) as error:
                raise SandboxError(f"cannot start a process for the sandbox ({error}): leave --execute out") from error
            finally:
                os.close(sending)
            try:
                return False, process.wait(self._limits.wall_seconds)
            except subprocess.TimeoutExpired:
                return True, 0
            finally:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _report(receiving: int) -> dict[str, Any]:
    """What came over the pipe; a program that wrote into it itself has spoilt it."""
    tree: dict[str, Any] = {}
    try:
        for line in os.read(receiving, _MAX_REPORT).splitlines():
            tree.update(json.loads(line))
    except (OSError, ValueError, TypeError):
        return {}
    return tree


def _ending(report: dict[str, Any], code: int, *, is_late: bool) -> Ending:
    # the first process of a namespace does not hear SIGXCPU; the hard limit's SIGKILL comes a second later
    if is_late or code in (-signal.SIGXCPU, -signal.SIGKILL):
        return Ending.TIMEOUT
    said = report.get("ending")
    return Ending(said) if code == 0 and said in _OUTCOMES else Ending.CRASHED


def _signal_name(code: int) -> str:
    return signal.Signals(-code).name if -code in set(signal.Signals) else ""
