"""`dg-lsp serve`: the HTTP API, for editors' plugins and whatever speaks OpenAI's completions."""

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dg_lsp.cli.options import GpuLayers, Model, Remote, Threads
from dg_lsp.errors import InputFileError

if TYPE_CHECKING:
    from dg_lsp.http.gate import Rules
    from dg_lsp.settings import Settings

KEY_VARIABLE = "DG_LSP_API_KEY"
KeyFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help=f"Holds the key that clients must send; or set {KEY_VARIABLE}.")
]
AllowedHosts = Annotated[
    list[str] | None, typer.Option(metavar="NAME", help="A name of this machine that clients may ask for.")
]
AllowedOrigins = Annotated[list[str] | None, typer.Option(metavar="ORIGIN", help="A page that may ask from a browser.")]


def serve(
    host: Annotated[
        str, typer.Option(metavar="HOST", help="Listen there; other than loopback needs a key.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, metavar="PORT", help="0 takes a free one.")] = 8012,
    api_key_file: KeyFile = None,
    allow_host: AllowedHosts = None,
    allow_origin: AllowedOrigins = None,
    model: Model = None,
    remote: Remote = None,
    gpu_layers: GpuLayers = None,
    threads: Threads = None,
) -> int:
    """Serve fills over HTTP."""
    from dg_lsp.cli import loading
    from dg_lsp.cli.loading import configure, overrides
    from dg_lsp.engine.scheduler import Scheduler
    from dg_lsp.http.listening import Address, Listening

    settings = configure(overrides(model=model, gpu_layers=gpu_layers, threads=threads, remote=remote))
    rules = rules_of(settings, host, api_key_file, allow_host or (), allow_origin or ())
    return Listening(Address(host, port), partial(Scheduler.of, loading.open_engine), settings, rules).run()


def rules_of(
    settings: "Settings", host: str, api_key_file: Path | None, hosts: Sequence[str], origins: Sequence[str]
) -> "Rules":
    """Who may come in, by what was said on the command line.

    Raises:
        InputFileError: as of `read_key`.
    """
    from dg_lsp.http.gate import Rules, allowed_hosts

    return Rules(
        api_key=read_key(api_key_file),
        hosts=allowed_hosts(host, hosts),
        origins=tuple(origins),
        max_requests=2 * settings.http.max_waiting,
    )


def read_key(path: Path | None) -> str:
    """The file's first line, or the environment's variable; a key on the command line would be seen by everybody.

    Raises:
        InputFileError: the file cannot be read or holds no key.
    """
    if path is None:
        return os.environ.get(KEY_VARIABLE, "").strip()
    try:
        key = path.read_text(encoding="utf-8").partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputFileError(
            f"{path}: {getattr(error, 'strerror', None) or 'not UTF-8'}; give a file with a key"
        ) from error
    if not key:
        raise InputFileError(f"{path} is empty; its first line is the key")
    return key
