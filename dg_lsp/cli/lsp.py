"""`dg-lsp lsp`: the language server."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from dg_lsp.cli import loading
from dg_lsp.cli.daemon import DaemonUse, use_daemon
from dg_lsp.cli.loading import GpuLayers, Model, Remote, Threads, configure, overrides
from dg_lsp.errors import SettingsError, UsageError

if TYPE_CHECKING:
    from dg_lsp.engine.engine import Engine
    from dg_lsp.settings import Settings


def lsp(
    stdio: Annotated[bool, typer.Option("--stdio", help="Use standard input and output; the default.")] = False,
    tcp: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Listen on this address for one client.")] = None,
    model: Model = None,
    remote: Remote = None,
    gpu_layers: GpuLayers = None,
    threads: Threads = None,
    daemon: Annotated[
        DaemonUse | None, typer.Option(help="Share the model of a daemon; default: the setting daemon.use.")
    ] = None,
) -> int:
    """Run the language server."""
    from dg_lsp.settings import parse_settings

    if stdio and tcp is not None:
        raise UsageError("--stdio and --tcp exclude each other: give one of them")
    address = None if tcp is None else parse_address(tcp)
    over = overrides(model=model, gpu_layers=gpu_layers, threads=threads, remote=remote)
    settings = _settings(over)

    def open_engine(merged: "Settings") -> "Engine":
        # options of the command line override the client's initializationOptions
        return loading.open_engine(parse_settings(over, merged))

    if address is None:
        use_daemon(settings, over, daemon)
    from dg_lsp.server import app as server

    if address is None:
        return server.serve_stdio(open_engine, settings)
    return server.serve_tcp(*address, open_engine, settings)


def parse_address(text: str, option: str = "--tcp") -> tuple[str, int]:
    """Host and port of `HOST:PORT`; an IPv6 host stands in brackets.

    Raises:
        UsageError: the text is not an address.
    """
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (colon and host and port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65535):
        raise UsageError(f"{option} {text}: expected HOST:PORT, for example 127.0.0.1:8013")
    return host, int(port)


def _settings(over: dict[str, Any]) -> "Settings":
    """The settings; an invalid file is reported and ignored, because the editor needs a server.

    Raises:
        SettingsError: an option of the command line is invalid.
    """
    from dg_lsp.settings import parse_settings

    from_command_line = parse_settings(over)
    try:
        return configure(over)
    except SettingsError as error:
        typer.echo(f"dg-lsp: {' '.join(str(error).split())} (the file is ignored)", err=True)
        return from_command_line
