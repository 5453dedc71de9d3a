"""A process of its own for the daemon, which no terminal and no editor takes along when it ends."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from dg_lsp.daemon.calling import Refused, ask
from dg_lsp.daemon.place import Place
from dg_lsp.errors import DaemonError, DaemonRunsError, DgLspError

START_SECONDS = 30.0
_READY, _RUNS = b"ready", b"runs"
_TICK = 0.1
_LONGEST_LOG = 1 << 20

Work = Callable[[Callable[[], None]], int]
"""Runs the daemon; calls what it is given once it listens, and returns an exit code."""


def start_apart(work: Work, log: Path) -> None:
    """Runs the work in a process apart, and returns once it listens.

    The work has to import for itself whatever starts threads: they would not live on in the other process.

    Raises:
        DaemonRunsError: there is a daemon.
        DaemonError: it did not come to listen, with the reason.
    """
    source, sink = os.pipe()
    if os.fork() == 0:
        os.close(source)
        _be_apart(work, log, sink)
    os.close(sink)
    with os.fdopen(source, "rb") as pipe:
        said = pipe.read()
    if said == _READY:
        return
    if said == _RUNS:
        raise DaemonRunsError("a daemon runs already: see dg-lsp daemon status")
    raise DaemonError(said.decode("utf-8", "replace") or f"the daemon ended at once; {log} may say why")


def start_program(command: Sequence[str], place: Place) -> None:
    """As `start_apart` where processes cannot fork: starts the program, and waits until it answers.

    Raises:
        DaemonError: it did not come to listen.
    """
    flags = getattr(subprocess, "DETACHED_PROCESS", 0) | getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
    with place.log.open("ab") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log, creationflags=flags
        )
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        record = place.read()
        try:
            if record is not None and ask(record, "status")["pid"] == process.pid:
                return
        except (OSError, Refused):
            pass  # it has not come that far
        time.sleep(_TICK)
    raise DaemonError(f"the daemon did not start; {place.log} may say why")


def _be_apart(work: Work, log: Path, sink: int) -> NoReturn:
    """The other process, from its first breath to its last: nothing of the old one's ends may run here."""
    code = 1
    try:
        os.setsid()
        _redirect(log)
        os.chdir("/")
        code = work(lambda: _say(sink, _READY))
    except DaemonRunsError:
        _say(sink, _RUNS)
    except DgLspError as error:
        _say(sink, str(error).encode())
    except BaseException as error:  # noqa: BLE001 - it is the end of this process, whatever it was
        sys.stderr.write(f"dg-lsp: {type(error).__name__}\n")
    finally:
        sys.stderr.flush()
        os._exit(code)


def _say(sink: int, said: bytes) -> None:
    os.write(sink, said)
    os.close(sink)


def _redirect(log: Path) -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    # what the last one said before it died is kept, within bounds
    is_long = log.exists() and log.stat().st_size > _LONGEST_LOG
    written = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | (os.O_TRUNC if is_long else 0), 0o600)
    for descriptor, target in ((nowhere, 0), (nowhere, 1), (written, 2)):
        os.dup2(descriptor, target)
    os.close(nowhere)
    os.close(written)
