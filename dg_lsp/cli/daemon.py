"""`dg-lsp daemon`: one model for all editors of this user."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dg_lsp.cli.options import Json
from dg_lsp.cli.serve import AllowedHosts, AllowedOrigins, HttpOptions, KeyFile, http_opener
from dg_lsp.errors import DaemonError, DaemonRunsError

if TYPE_CHECKING:
    from dg_lsp.daemon.place import Place, Record
    from dg_lsp.daemon.starting import Work

STOP_SECONDS = 20.0
app = typer.Typer(help="One model for all editors: start, stop or look at the daemon.", no_args_is_help=True)


@app.command("start")
def start(
    foreground: Annotated[bool, typer.Option("--foreground", help="Stay in this terminal until Ctrl-C.")] = False,
    tcp: Annotated[
        int | None, typer.Option(min=0, max=65535, metavar="PORT", help="Listen on loopback instead of a socket.")
    ] = None,
    linger: Annotated[bool, typer.Option("--linger", help="Leave when no editor has needed it for a while.")] = False,
    idle: Annotated[
        float | None, typer.Option(min=0.1, metavar="SECONDS", help="That while, instead of what is set.")
    ] = None,
    http: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Serve HTTP there as well, as dg-lsp serve does.")
    ] = None,
    api_key_file: KeyFile = None,
    allow_host: AllowedHosts = None,
    allow_origin: AllowedOrigins = None,
) -> int:
    """Start the daemon. Models are opened when editors ask for them."""
    from dg_lsp.cli.loading import configure
    from dg_lsp.daemon.place import Place

    settings = configure({})
    port = 0 if tcp is None and settings.daemon.transport == "tcp" else tcp
    options = HttpOptions(http, api_key_file, tuple(allow_host or ()), tuple(allow_origin or ()))
    open_web = http_opener(options, settings, is_lenient=linger)
    place = Place.of_user()

    def work(on_ready: Callable[[], None]) -> int:
        from dg_lsp.cli import loading
        from dg_lsp.daemon.listening import Daemon

        daemon = Daemon(
            place,
            loading.open_engine,
            idle_seconds=idle or settings.daemon.idle_seconds,
            is_lingering=linger,
            port=port,
            open_web=open_web,
        )
        if foreground and daemon.url is not None:
            typer.echo(f"dg-lsp: HTTP at {daemon.url}", err=True)
        return daemon.run(on_ready)

    try:
        if foreground:
            return work(lambda: _say(place, "listens"))
        _start(work, place, is_tried_again=not linger)
        what = "listens"
    except DaemonRunsError:
        what = "runs already"
    _say(place, what)
    url = _status().get("http") if options.address or settings.daemon.http else None
    if url:
        typer.echo(f"dg-lsp: HTTP at {url}", err=True)
    elif options.address:
        raise DaemonError(f"the daemon {what} and serves no HTTP: run dg-lsp daemon stop, then this again")
    return 0


def _start(work: "Work", place: "Place", *, is_tried_again: bool) -> None:
    """Starts it apart; `is_tried_again` by a person, who has decided so for models that died too often as well.

    Raises:
        DaemonRunsError: there is one.
        DaemonError: it did not come to listen, with the reason.
    """
    from dg_lsp.daemon.deaths import Deaths
    from dg_lsp.daemon.starting import start_apart, start_program

    if is_tried_again:
        Deaths(place.folder).forget()
    if _answers(place):
        raise DaemonRunsError("a daemon runs already")
    _made(place)
    if sys.platform == "win32":
        start_program(_foreground(sys.argv[1:]), place)
    else:
        start_apart(work, place.log)


@app.command("stop")
def stop() -> int:
    """Stop the daemon. Editors that use it go on by themselves."""
    from filelock import FileLock, Timeout

    from dg_lsp.daemon.calling import Refused, ask
    from dg_lsp.daemon.deaths import Deaths
    from dg_lsp.daemon.place import Place
    from dg_lsp.daemon.working import Working

    place = Place.of_user()
    record = place.read()
    Deaths(place.folder).forget()
    if not place.lock.exists():
        typer.echo("no daemon runs", err=True)
        return 1
    try:
        if record is not None:
            ask(record, "stop")
        is_asked = record is not None
    except (OSError, Refused):
        is_asked = False
    lock = FileLock(place.lock)
    try:
        lock.acquire(timeout=STOP_SECONDS if is_asked else 0)
    except Timeout:
        _end(record)
        is_asked = True
        lock.acquire(timeout=STOP_SECONDS)
    place.clear()  # what a killed one left behind
    Working(place.folder).clear()
    lock.release()
    typer.echo("stopped" if is_asked else "no daemon runs", err=True)
    return 0 if is_asked else 1


@app.command("status")
def status(as_json: Json = False) -> int:
    """Say whether the daemon runs, and which models it holds for whom."""
    facts = _status()
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
    elif not facts["running"]:
        typer.echo("no daemon runs")
        for line in _last_words():
            typer.echo(line)
    else:
        for line in _lines(facts):
            typer.echo(line)
    return 0 if facts["running"] else 1


def _status() -> dict[str, Any]:
    """Raises: DaemonError: there is one that does not answer as it should."""
    from dg_lsp.daemon.calling import Refused, ask
    from dg_lsp.daemon.place import Place

    record = Place.of_user().read()
    if record is None:
        return {"running": False}
    try:
        return {"running": True, **ask(record, "status")}
    except TimeoutError as error:
        raise DaemonError(f"the daemon {record.pid} does not answer: run dg-lsp daemon stop") from error
    except OSError:
        return {"running": False}
    except Refused as refused:
        raise DaemonError(str(refused)) from refused


def _last_words() -> list[str]:
    """Of a daemon that died, and that no other one has come after."""
    from dg_lsp.daemon.place import Place
    from dg_lsp.daemon.working import Working

    place = Place.of_user()
    if (record := place.read()) is None:
        return []
    how, models, _ = Working(place.folder).last()
    return [f"process {record.pid} died ({how}), at work: {', '.join(models) or 'nothing'}"]


def _lines(facts: dict[str, Any]) -> list[str]:
    memory = facts["memory_bytes"] / (1 << 20)
    lines = [
        f"dg-lsp {facts['version']}, process {facts['pid']}, at {facts['address']}",
        f"{facts['sessions']} editors, {memory:.0f} MiB resident, up {facts['seconds']:.0f} s",
        *([f"HTTP at {facts['http']}"] if facts["http"] else []),
    ]
    lines += [f"{one['model']}: {one['state']}, in use by {one['sessions']}" for one in facts["models"]]
    return lines + [
        f"one died {one['seconds_ago']:.0f} s ago ({one['how']}), at work: {', '.join(one['models']) or 'nothing'}"
        for one in facts["deaths"]
    ]


def _end(record: "Record | None") -> None:
    """A daemon that holds its lock and does not listen; only who holds the lock writes the record."""
    if record is None:
        raise DaemonError("the daemon does not say which process it is; end it by hand")
    typer.echo(f"the daemon does not answer: ending process {record.pid}", err=True)
    os.kill(record.pid, signal.SIGTERM if sys.platform == "win32" else signal.SIGKILL)


def _foreground(arguments: list[str]) -> list[str]:
    """The same command, for a process that needs no fork."""
    from dg_lsp.system import python_command

    return python_command("dg_lsp", *arguments, "--foreground")


def _answers(place: "Place") -> bool:
    from dg_lsp.daemon.calling import Refused, ask

    record = place.read()
    try:
        return record is not None and bool(ask(record, "status"))
    except (OSError, Refused):
        return False


def _made(place: "Place") -> None:
    try:
        place.make()
    except OSError as error:
        raise DaemonError(f"{place.folder} cannot be used ({error.strerror}); set DG_LSP_DAEMON_DIR") from error


def _say(place: "Place", what: str) -> None:
    for _ in range(20):
        if (record := place.read()) is not None:
            typer.echo(f"dg-lsp: the daemon {what} at {record.address} (process {record.pid})", err=True)
            break
        time.sleep(0.1)  # it holds its lock and has yet to say where it listens
