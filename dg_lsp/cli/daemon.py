"""`dg-lsp daemon`."""

import os
import signal
import sys
from contextlib import suppress
from typing import Annotated

from typer import Option

from dg_lsp.cli import servers
from dg_lsp.cli.options import Json, configure
from dg_lsp.cli.printing import print_facts, print_json, print_line
from dg_lsp.daemon.client import READY, query, report
from dg_lsp.daemon.client import start as start_daemon
from dg_lsp.daemon.endpoint import STOP_SECONDS, Endpoint
from dg_lsp.errors import DaemonError, DaemonRunsError, DgLspError

ExitWhenIdle = Annotated[bool, Option("--exit-when-idle", help="End 10 minutes after the last editor has left.")]


def start(
    foreground: Annotated[bool, Option("--foreground", help="Stay in this terminal until Ctrl-C.")] = False,
    exit_when_idle: ExitWhenIdle = False,
) -> int:
    """Start the daemon. Models are opened when editors request them."""
    from dg_lsp.cli import loading
    from dg_lsp.daemon.server import Daemon

    configure({}, in_folder=False)
    endpoint = Endpoint.of_user()
    if foreground:
        daemon = Daemon(endpoint, loading.open_engine, exit_when_idle=exit_when_idle)
        return daemon.run(lambda: _print_address(endpoint, "listens"))
    if query(endpoint, "status") is not None:
        _print_address(endpoint, "runs already")
        return 0
    start_daemon(endpoint, [*servers.DAEMON, *(["--exit-when-idle"] if exit_when_idle else [])])
    _print_address(endpoint, "listens")
    return 0


def run(exit_when_idle: ExitWhenIdle = False) -> int:
    """Run the daemon and report to the process that started it; for `start` and `dg-lsp lsp`."""
    from dg_lsp.cli import loading
    from dg_lsp.daemon.server import Daemon

    try:
        daemon = Daemon(Endpoint.of_user(), loading.open_engine, exit_when_idle=exit_when_idle)
        return daemon.run(lambda: report(READY))
    except DaemonRunsError:
        report(READY)
        return 0
    except DgLspError as error:
        report(str(error))
        raise


def stop() -> int:
    """Stop the daemon, also those of other versions. Editors go on with a new one, or with a model of their own."""
    configure({}, in_folder=False)
    endpoint = Endpoint.of_user()
    versions = {endpoint.version, *(running.version for running in endpoint.all_versions())}
    stopped = [_stop(Endpoint(endpoint.folder, version)) for version in sorted(versions)]
    print_line("stopped" if any(stopped) else "no daemon runs", err=True)
    return 0 if any(stopped) else 1


def _stop(endpoint: Endpoint) -> bool:
    """Ends a daemon, and removes what a crashed one left behind; whether it ran."""
    from filelock import FileLock, Timeout

    record = endpoint.read()
    if not endpoint.lock.exists():
        return False
    is_stopping = False
    with suppress(DaemonError):
        is_stopping = query(endpoint, "stop") is not None
    lock = FileLock(endpoint.lock)
    try:
        lock.acquire(timeout=STOP_SECONDS if is_stopping or record is None else 0)
    except Timeout:
        if record is None:
            raise DaemonError("the daemon has no record of its process: end it by hand") from None
        # only the holder of the lock writes a record: the process is the daemon
        print_line(f"the daemon does not answer: ending process {record.pid}", err=True)
        with suppress(ProcessLookupError):  # it has just ended
            os.kill(record.pid, signal.SIGTERM if sys.platform == "win32" else signal.SIGKILL)
        is_stopping = True
        lock.acquire(timeout=STOP_SECONDS)
    endpoint.clear()  # the files of a daemon that crashed
    lock.release()
    return is_stopping


def status(as_json: Json = False) -> int:
    """Show whether the daemon runs, and which models it holds for how many sessions."""
    configure({}, in_folder=False)
    endpoint = Endpoint.of_user()
    facts = query(endpoint, "status")
    tree = {"running": facts is not None} | (facts or {})
    if as_json:
        print_json(tree)
        return 1 if facts is None else 0
    if facts is None and (record := endpoint.read()) is not None:
        tree |= {"crashed_process": record.pid, "log": str(endpoint.log)}
    versions = {running.version for running in endpoint.all_versions()} - {endpoint.version}
    print_facts(tree | {"other_versions_running": sorted(versions)})
    return 1 if facts is None else 0


def _print_address(endpoint: Endpoint, state: str) -> None:
    if record := endpoint.read():
        print_line(f"dg-lsp: the daemon {state} at {record.address} (process {record.pid})", err=True)
