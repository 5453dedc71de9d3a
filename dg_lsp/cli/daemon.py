"""`dg-lsp daemon`."""

import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from dg_lsp.cli import loading, servers
from dg_lsp.cli.loading import configure_user
from dg_lsp.cli.options import Json
from dg_lsp.cli.printing import print_line
from dg_lsp.cli.servers import daemon_options
from dg_lsp.daemon.client import READY, STOP_SECONDS, Endpoint, Refused, ask, report
from dg_lsp.daemon.client import start as start_daemon
from dg_lsp.errors import DaemonError, DaemonRunsError, DgLspError, UsageError
from dg_lsp.system import pin_gpu

if TYPE_CHECKING:
    from dg_lsp.engine.engine import Engine
    from dg_lsp.settings import Settings

_MAX_GPUS = 1000
app = typer.Typer(help="Start, stop or show the daemon, which holds one model for all editors.")


@app.command("start", epilog="Example: dg-lsp daemon start --exit-when-idle")
def start(
    foreground: Annotated[bool, Option("--foreground", help="Stay in this terminal until Ctrl-C.")] = False,
    exit_when_idle: Annotated[
        bool, Option("--exit-when-idle", help="End 10 minutes after the last editor has left.")
    ] = False,
    gpus: Annotated[str | None, Option(metavar="N,N,...", help="Start one daemon for each of these GPUs.")] = None,
) -> int:
    """Start the daemon. Models are opened when editors request them."""
    from dg_lsp.daemon.pool import CrashLog

    main, numbers = Endpoint.of_user(), _gpu_numbers(gpus)
    _check_alone(main, numbers)
    if gpus is not None and foreground:
        raise UsageError("--foreground is for one daemon: leave --gpus out")
    _check_gpus(numbers)
    settings = configure_user({})
    for endpoint in map(main.of_gpu, numbers):
        given = daemon_options(settings, exit_when_idle=exit_when_idle, gpu=endpoint.gpu)
        CrashLog(endpoint.crashes).clear()
        if foreground:
            return _run(endpoint, given, lambda: _print_address(main, "listens"))
        _start(endpoint, given)
    return 0


def _gpu_numbers(text: str | None) -> list[int | None]:
    """The numbers of `--gpus`; None alone for the user's only daemon."""
    if text is None:
        return [None]
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) < _MAX_GPUS for part in parts):
        raise UsageError(f"--gpus {text}: give numbers of nvidia-smi, such as 0,1")
    return list(dict.fromkeys(map(int, parts)))


def _check_gpus(numbers: Sequence[int | None]) -> None:
    """Raises UsageError if this machine lacks one: its daemon would start, and fail at the first request."""
    from dg_lsp.models.gpus import find_gpus

    wanted = max((number for number in numbers if number is not None), default=-1)
    num_gpus = max(Counter(gpu.kind for gpu in find_gpus()).values(), default=0) if wanted >= 0 else 0
    if wanted >= num_gpus:
        raise UsageError(f"--gpus: this machine has no GPU {wanted} (GPUs found: {num_gpus}; they are counted from 0)")


def _check_alone(main: Endpoint, numbers: Sequence[int | None]) -> None:
    """Raises DaemonError if daemons run that would use the same GPUs, or among which editors would not choose."""
    if numbers == [None] and (others := main.of_gpus()):
        listed = ", ".join(str(one.gpu) for one in others)
        raise DaemonError(f"daemons of single GPUs run ({listed}): run dg-lsp daemon stop first")
    if numbers != [None] and _status(main)["running"]:
        raise DaemonError("a daemon for all GPUs runs: run dg-lsp daemon stop first")


def _start(endpoint: Endpoint, given: Mapping[str, Any]) -> None:
    if _status(endpoint)["running"]:
        _print_address(endpoint, "runs already")
    else:
        start_daemon(endpoint, servers.DAEMON, json.dumps(given))
        _print_address(endpoint, "listens")


@app.command("run", hidden=True)
def run() -> int:
    """Run the daemon with the options on standard input; for `start` and `dg-lsp lsp`."""
    given = json.load(sys.stdin)
    try:
        return _run(Endpoint.of_user().of_gpu(given.get("gpu")), given, lambda: report(READY))
    except DaemonRunsError:
        report(READY)
        return 0
    except DgLspError as error:
        report(str(error))
        raise


@app.command("stop", epilog="Example: dg-lsp daemon stop")
def stop() -> int:
    """Stop the daemon. Its editors continue with another daemon, or with a model of their own."""
    configure_user({})
    main = Endpoint.of_user()
    endpoints = main.of_gpus()
    if main.read() is not None or not endpoints:
        endpoints.insert(0, main)
    is_stopped = any([_stop(endpoint) for endpoint in endpoints])  # noqa: C419  (all of them)
    print_line("stopped" if is_stopped else "no daemon runs", err=True)
    return 0 if is_stopped else 1


def _stop(endpoint: Endpoint) -> bool:
    """Ends a daemon, and removes what a crashed one left behind; whether it ran."""
    from filelock import FileLock, Timeout

    from dg_lsp.daemon.pool import CrashLog

    record = endpoint.read()
    CrashLog(endpoint.crashes).clear()
    if not endpoint.lock.exists():
        return False
    is_stopping = False
    if record is not None:
        with suppress(OSError, Refused):
            ask(record, "stop")
            is_stopping = True
    lock = FileLock(endpoint.lock)
    try:
        lock.acquire(timeout=0 if record is not None and not is_stopping else STOP_SECONDS)
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


@app.command("status", epilog="Example: dg-lsp daemon status --json")
def status(as_json: Json = False) -> int:
    """Show whether the daemon runs, and which models it holds for how many sessions."""
    configure_user({})
    main = Endpoint.of_user()
    endpoints = main.of_gpus()
    found = [(one, _status(one)) for one in endpoints or [main]]
    is_running = any(facts["running"] for _, facts in found)
    if as_json:
        tree = {"running": is_running, "gpus": [facts for _, facts in found]} if endpoints else found[0][1]
        typer.echo(json.dumps(tree, indent=2))
        return 0 if is_running else 1
    for endpoint, facts in found:
        if facts["running"]:
            lines = _lines(facts)
        else:
            crash = [f"process {facts['crashed']} crashed: see {endpoint.log}"] if "crashed" in facts else []
            lines = ["no daemon runs", *crash]
        if endpoint.gpu is not None:
            print_line(f"GPU {endpoint.gpu}:")
        for line in lines:
            print_line(line)
    return 0 if is_running else 1


def _run(endpoint: Endpoint, given: Mapping[str, Any], on_ready: Callable[[], None]) -> int:
    from dg_lsp.daemon.server import Daemon

    if (gpu := given.get("gpu")) is not None:
        pin_gpu(gpu)
    open_engine = loading.open_engine if gpu is None else _open_on_gpu
    daemon = Daemon(endpoint, open_engine, exit_when_idle=given["exit_when_idle"])
    return daemon.run(on_ready)


def _open_on_gpu(settings: "Settings") -> "Engine":
    """An engine on the only GPU that this process sees; an error where there is none."""
    import attrs

    if settings.model.device != "cpu":
        settings = attrs.evolve(settings, model=attrs.evolve(settings.model, device="gpu"))
    return loading.open_engine(settings)


def _status(endpoint: Endpoint) -> dict[str, Any]:
    """What the daemon reports of itself. Raises DaemonError if it does not answer, or does not accept the token."""
    if (record := endpoint.read()) is None:
        return {"running": False}
    try:
        return {"running": True, **ask(record, "status")}
    except TimeoutError as error:
        raise DaemonError(f"the daemon {record.pid} does not answer: run dg-lsp daemon stop") from error
    except OSError:
        return {"running": False, "crashed": record.pid}
    except Refused as refused:
        raise DaemonError(str(refused)) from refused


def _print_address(endpoint: Endpoint, what: str) -> None:
    if record := endpoint.read():
        print_line(f"dg-lsp: the daemon {what} at {record.address} (process {record.pid})", err=True)


def _lines(facts: Mapping[str, Any]) -> list[str]:
    from dg_lsp.cli.output import plural

    memory = facts["memory_bytes"] / (1 << 20)
    lines = [
        f"dg-lsp {facts['version']}, process {facts['pid']}, at {facts['address']}",
        f"{plural(facts['sessions'], 'editor')}, {memory:.0f} MiB resident, up {facts['seconds']:.0f} s",
    ]
    lines += [f"{one['model']}: {one['state']}, {plural(one['sessions'], 'session')}" for one in facts["models"]]
    return lines + [
        f"a daemon crashed {one['seconds_ago']:.0f} s ago; models in use: {', '.join(one['models']) or 'none'}"
        for one in facts["crashes"]
    ]
