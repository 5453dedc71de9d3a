"""`dg-lsp serve` and `dg-lsp daemon start --http`: the HTTP API, for editor plugins and clients of OpenAI."""

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dg_lsp.cli import loading
from dg_lsp.cli.loading import GpuLayers, Model, Remote, Threads, configure, overrides
from dg_lsp.errors import InputFileError

if TYPE_CHECKING:
    from dg_lsp.http.auth import AccessRules

KEY_VARIABLE = "DG_LSP_API_KEY"
KeyFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help=f"File with the key that clients must send; or set {KEY_VARIABLE}.")
]
AllowedHosts = Annotated[
    list[str] | None, typer.Option(metavar="NAME", help="Host name of this machine that clients may use.")
]
AllowedOrigins = Annotated[
    list[str] | None, typer.Option(metavar="ORIGIN", help="Origin of a web page that may send requests.")
]


def serve(
    host: Annotated[
        str, typer.Option(metavar="HOST", help="Address to listen on; any other than loopback requires a key.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, metavar="PORT", help="0 takes a free port.")] = 8012,
    api_key_file: KeyFile = None,
    allow_host: AllowedHosts = None,
    allow_origin: AllowedOrigins = None,
    model: Model = None,
    remote: Remote = None,
    gpu_layers: GpuLayers = None,
    threads: Threads = None,
) -> int:
    """Serve completions over HTTP."""
    from dg_lsp.engine.scheduler import Scheduler
    from dg_lsp.http.server import Address, HttpServer

    settings = configure(overrides(model=model, gpu_layers=gpu_layers, threads=threads, remote=remote))
    rules = access_rules(host, api_key_file, allow_host or (), allow_origin or ())
    HttpServer(Address(host, port), partial(Scheduler.of, loading.open_engine), settings, rules).run()
    return 0


def access_rules(host: str, api_key_file: Path | None, hosts: Sequence[str], origins: Sequence[str]) -> "AccessRules":
    """Key, host names and origins that the server accepts.

    Raises:
        InputFileError: the key cannot be read.
    """
    from dg_lsp.http.auth import AccessRules, allowed_hosts

    return AccessRules(_read_key(api_key_file), allowed_hosts(host, hosts), tuple(origins))


def _read_key(path: Path | None) -> str:
    """The first line of the file, or the variable; other users could read a key on the command line."""
    if path is None:
        return os.environ.get(KEY_VARIABLE, "").strip()
    try:
        key = path.read_text(encoding="utf-8").partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise InputFileError(f"{path}: {reason}; give a file with a key") from error
    if not key:
        raise InputFileError(f"{path} is empty; its first line is the key")
    return key
