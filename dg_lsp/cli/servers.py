"""`dg-lsp lsp`, `serve` and `daemon`: the language server, the HTTP API, and a process that shares models."""

import os
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Option

from dg_lsp.cli.options import Json, ModelOptions, configure
from dg_lsp.cli.printing import note, print_facts, print_json, print_line
from dg_lsp.daemon.endpoint import READY, STOP_SECONDS, Endpoint, become_pipe, report
from dg_lsp.errors import DaemonError, DaemonRunsError, DgLspError, InputFileError, UsageError, map_input_errors
from dg_lsp.settings import Settings, settings_tree
from dg_lsp.system import LOOPBACK, NEUTRAL_FOLDER, is_present, keep_heap_small, pin_gpu, python_command

DAEMON = python_command("dg_lsp", "daemon", "run")
KEY_VARIABLE = "DG_LSP_API_KEY"
TOKEN_VARIABLE = "DG_LSP_TOKEN"
MIN_TOKEN_CHARS = 16
_ONLY_CLIENT = "client"
"""The name of a key that has none."""
DaemonUse = Literal["auto", "start", "never"]
ExitWhenIdle = Annotated[bool, Option("--exit-when-idle", help="End 10 minutes after the last editor has left.")]


def lsp(
    model: ModelOptions,
    stdio: Annotated[bool, Option("--stdio", help="Use standard input and output; the default.")] = False,
    tcp: Annotated[
        str | None, Option(metavar="HOST:PORT", help="Listen on this loopback address for one client with a token.")
    ] = None,
    daemon: Annotated[
        DaemonUse | None, Option(help="Whether to use a daemon; default: the setting daemon.use.")
    ] = None,
) -> int:
    """Run the language server."""
    if stdio and tcp is not None:
        raise UsageError("--stdio and --tcp exclude each other: give one of them")
    address = None if tcp is None else parse_address(tcp)
    if address is not None and address[0] not in LOOPBACK:
        raise UsageError(f"--tcp {tcp}: other machines could connect; use 127.0.0.1, and ssh -L from another machine")
    if address is None and sys.stdin.isatty():
        note("waits for LSP messages of an editor on standard input; dg-lsp setup prints the settings for editors")
    overrides = model.tree
    settings = configure(overrides, in_folder=False)  # the editor names the workspace, and so its file, later
    if address is None:
        _use_daemon(settings, overrides, daemon)
    from dg_lsp.cli import loading
    from dg_lsp.server import app as server

    token = "" if address is None else _token()
    return server.serve_client(loading.open_engine, settings, overrides, address, token)


def _token() -> str:
    """What a TCP client must send, from the variable, which children do not inherit; empty for a new one.

    Raises UsageError: the variable can be guessed.
    """
    token = os.environ.pop(TOKEN_VARIABLE, "").strip()
    if token and len(token) < MIN_TOKEN_CHARS:
        raise UsageError(f"{TOKEN_VARIABLE} has fewer than {MIN_TOKEN_CHARS} characters: set a longer one")
    return token


def _use_daemon(settings: Settings, overrides: Mapping[str, Any], use: DaemonUse | None) -> None:
    """Turns this process into a pipe to the daemon; returns where no daemon is wanted, or none can be had.

    `auto` uses a daemon that runs, and starts one where the last one crashed or is of another version. A remote server
    needs no shared model, a daemon has not the key of this editor for one, and does not learn that settings are
    incomplete. `settings` are those known before the editor sends its options; `overrides` is the command line's tree.
    """
    daemon_use = use or settings.daemon.use
    has_key = bool(os.environ.get(settings.remote.key_source))
    if daemon_use == "never" or settings.is_remote or has_key or settings.privacy.is_incomplete:
        return
    endpoint = Endpoint.of_user()
    if daemon_use == "auto" and not endpoint.records():
        return
    tree = _located(settings)
    if "name" in overrides.get("model", {}):
        overrides = dict(overrides) | {"model": overrides["model"] | {"name": tree["model"]["name"]}}
    try:
        connection = endpoint.open_session({"settings": tree, "over": overrides}, [*DAEMON, "--exit-when-idle"])
    except DaemonError as error:
        note(f"{error}; this editor gets a model of its own")
    else:
        become_pipe(connection)


def _located(settings: Settings) -> dict[str, Any]:
    """The settings as JSON values that mean the same in any directory."""
    from dg_lsp.models.registry import known_names
    from dg_lsp.settings_files import MODEL_KEYS, with_paths

    folder = NEUTRAL_FOLDER
    with suppress(OSError):  # the working directory was removed
        folder = Path.cwd()
    return settings_tree(with_paths(settings, MODEL_KEYS, folder, known_names()))


def serve(
    model: ModelOptions,
    host: Annotated[str, Option(metavar="HOST", help="Address; any but loopback requires a key.")] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, metavar="PORT", help="0 takes a free port.")] = 8012,
    api_key_file: Annotated[
        Path | None, Option(metavar="FILE", help=f"File with the API keys; without it {KEY_VARIABLE}.")
    ] = None,
    allow_host: Annotated[
        list[str] | None, Option(metavar="NAME", help="Host name that clients use for this machine; may be repeated.")
    ] = None,
    allow_origin: Annotated[
        list[str] | None, Option(metavar="ORIGIN", help="Origin whose web pages may send requests; may be repeated.")
    ] = None,
    max_queued: Annotated[int, Option(min=1, metavar="N", help="Most requests that run and wait at a time.")] = 32,
    gpu: Annotated[int | None, Option(min=0, metavar="N", help="Use only this GPU.")] = None,
) -> int:
    """Serve completions over HTTP."""
    from dg_lsp.cli import loading
    from dg_lsp.engine.scheduler import Scheduler, SharedDevice
    from dg_lsp.http.app import HttpServer
    from dg_lsp.http.auth import AccessRules, allowed_hosts

    overrides = model.tree
    if gpu is not None:
        pin_gpu(gpu)
        overrides["model"]["device"] = "gpu"  # an error instead of the processor
    settings = configure(overrides)
    rules = AccessRules(
        keys=_read_keys(api_key_file),
        hosts=allowed_hosts(host, allow_host or ()),
        origins=tuple(allow_origin or ()),
        max_queued=max_queued,
    )
    open_scheduler = partial(Scheduler, loading.open_engine, device=SharedDevice())
    keep_heap_small()
    HttpServer((host, port), open_scheduler, settings, rules).run()
    return 0


def _read_keys(path: Path | None) -> dict[str, str]:
    """Keys by name: of the file's lines, or the variable's; other users could read a key on the command line.

    Raises InputFileError if the keys cannot be read.
    """
    if path is None:
        key = os.environ.get(KEY_VARIABLE, "").strip()
        return {_ONLY_CLIENT: key} if key else {}
    with map_input_errors("read", path):
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    rows = [line.split() for line in lines if line.strip()]
    keys = {" ".join(words[:-1]) or _ONLY_CLIENT: words[-1] for words in rows}
    if not rows or max(map(len, rows)) > 2 or len(set(keys.values())) < len(rows):
        problem = "each line must be a name, a blank and a key, none of them twice; or the file has a key alone"
        raise InputFileError(f"{path}: {problem}")
    return keys


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`; an IPv6 host stands in brackets. Raises UsageError for other texts."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (colon and host and port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65535):
        raise UsageError(f"--tcp {text}: expected HOST:PORT, for example 127.0.0.1:8013")
    return host, int(port)


# the daemon


def start(
    foreground: Annotated[bool, Option("--foreground", help="Stay in this terminal until Ctrl-C.")] = False,
    exit_when_idle: ExitWhenIdle = False,
) -> int:
    """Start the daemon. Models are opened when editors request them."""
    configure({}, in_folder=False)
    endpoint = Endpoint.of_user()
    if foreground:
        return _run_daemon(endpoint, lambda: _print_address(endpoint, "listens"), exit_when_idle=exit_when_idle)
    is_running = endpoint.query("status") is not None
    if not is_running:
        endpoint.start([*DAEMON, *(["--exit-when-idle"] if exit_when_idle else [])])
    _print_address(endpoint, "runs already" if is_running else "listens")
    return 0


def run(exit_when_idle: ExitWhenIdle = False) -> int:
    """Run the daemon and report to the process that started it; for `start` and `dg-lsp lsp`."""
    try:
        return _run_daemon(Endpoint.of_user(), lambda: report(READY), exit_when_idle=exit_when_idle)
    except DaemonRunsError:
        report(READY)
        return 0
    except DgLspError as error:
        report(str(error))
        raise


def _run_daemon(endpoint: Endpoint, on_ready: Callable[[], None], *, exit_when_idle: bool) -> int:
    from dg_lsp.cli import loading
    from dg_lsp.daemon.server import Daemon

    return Daemon(endpoint, loading.open_engine, exit_when_idle=exit_when_idle).run(on_ready)


def stop() -> int:
    """Stop the daemon, also those of other versions. Editors go on with a new one, or with a model of their own."""
    configure({}, in_folder=False)
    endpoint = Endpoint.of_user()
    stopped = [_stop(Endpoint(endpoint.folder, version)) for version in {endpoint.version, *endpoint.records()}]
    print_line("stopped" if any(stopped) else "no daemon runs", err=True)
    return 0 if any(stopped) else 1


def _stop(endpoint: Endpoint) -> bool:
    """Ends a daemon, and removes what a crashed one left behind; whether it ran."""
    from filelock import FileLock, Timeout

    record = endpoint.read()
    if not is_present(endpoint.lock):
        return False
    is_stopping = False
    with suppress(DaemonError):
        is_stopping = endpoint.query("stop") is not None
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
    facts = endpoint.query("status")
    tree = {"running": facts is not None} | (facts or {})
    if facts is None and (record := endpoint.read()) is not None:
        tree |= {"crashed_process": record.pid, "log": str(endpoint.log)}
    versions = [version for version in endpoint.records() if version != endpoint.version]
    show = print_json if as_json else print_facts
    show(tree | {"other_versions_running": versions})
    return 1 if facts is None else 0


def _print_address(endpoint: Endpoint, state: str) -> None:
    if record := endpoint.read():
        print_line(f"dg-lsp: the daemon {state} at {record.address} (process {record.pid})", err=True)
