"""HTTP beside a daemon's editors: where, who may come in, and what becomes of an address that cannot be had."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dg_lsp.errors import SettingsError, UsageError

if TYPE_CHECKING:
    from dg_lsp.daemon.listening import OpenWeb
    from dg_lsp.daemon.web import Web
    from dg_lsp.engine.scheduler import SchedulerSession
    from dg_lsp.settings import Settings


@dataclass(frozen=True, slots=True)
class WebOptions:
    """What the command line says."""

    address: str | None
    key_file: Path | None
    hosts: tuple[str, ...]
    origins: tuple[str, ...]


def opener_of(options: WebOptions, settings: "Settings", *, is_lenient: bool) -> "OpenWeb | None":
    """What has a daemon serve HTTP, by the command line or the settings; None where neither says so.

    A lenient one does without an address that is taken, unless the command line names it: a daemon that an editor
    started is there for editors first.

    Raises:
        UsageError: the address is none, or a key cannot be read.
        SettingsError: the settings, which may be a project's, would let other machines in.
    """
    text = options.address or settings.daemon.http
    if not text:
        return None
    from dg_lsp.cli.handing import absolute
    from dg_lsp.cli.lsp import parse_address
    from dg_lsp.cli.serve import rules_of
    from dg_lsp.http.gate import LOOPBACK

    host, port = parse_address(text, "--http" if options.address else "daemon.http")
    if options.address is None and host not in LOOPBACK:
        raise SettingsError(f"daemon.http {text}: only dg-lsp daemon start --http opens it to other machines")
    rules = rules_of(settings, host, options.key_file, options.hosts, options.origins)
    served = absolute(settings)

    def open_web(share: "Callable[[Settings], SchedulerSession]") -> "Web | None":
        from dg_lsp.daemon.web import Web
        from dg_lsp.http.listening import Address

        try:
            return Web(Address(host, port), share, served, rules)
        except UsageError as error:
            if options.address is not None or not is_lenient:
                raise
            typer.echo(f"dg-lsp: no HTTP: {error}", err=True)
            return None

    return open_web
