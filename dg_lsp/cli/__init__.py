"""The `dg-lsp` command: what a person types, and what comes back.

Stays light: importing this loads no command, no runtime and no server.
"""

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

INTERRUPTED, PIPE_CLOSED = 130, 141
"""As a shell reports a program that SIGINT or SIGPIPE ended."""


def main() -> NoReturn:
    """Entry point of `dg-lsp`: runs the command line and leaves with its exit code."""
    try:
        code = run(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter's last flush complains
        code = PIPE_CLOSED
    except KeyboardInterrupt:
        code = INTERRUPTED
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """One command line; returns its exit code. Whatever is raised on purpose becomes one line on standard error."""
    import typer

    from dg_lsp.cli.app import app
    from dg_lsp.errors import DgLspError

    _replace_unprintable()
    try:
        return int(app(args=list(arguments), prog_name="dg-lsp", standalone_mode=False) or 0)
    except typer.TyperException as error:
        return _complain(f"{error.format_message()} (see dg-lsp --help)", error.exit_code)
    except DgLspError as error:
        return _complain(str(error), error.exit_code)
    except typer.Abort:
        return INTERRUPTED
    except SystemExit:  # typer's own answer to a pipe whose reader has left
        return PIPE_CLOSED


def _replace_unprintable() -> None:
    """A pipe or console in a small encoding gets question marks instead of a traceback."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)  # not there where a test took the stream
        if reconfigure is not None:
            reconfigure(errors="replace")


def _complain(message: str, code: int) -> int:
    """Exactly one line, whatever a file name or a foreign message holds."""
    line = " ".join(message.split())
    print(f"dg-lsp: {''.join(c if c.isprintable() else '?' for c in line)}", file=sys.stderr)  # noqa: T201
    return code
