"""The `dg-lsp` command. Importing this module loads no command, no runtime and no server."""

import errno
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

INTERRUPTED, PIPE_CLOSED = 130, 141
"""Exit codes that a shell reports for a program ended by SIGINT or SIGPIPE."""
_OUTPUT_ERRORS = (errno.EPIPE, errno.ENOSPC, errno.EIO)


def main() -> NoReturn:
    """Entry point of `dg-lsp`: runs the command line and exits with its code."""
    _open_closed_streams()
    try:
        from dg_lsp.system import leave_out_relative_programs

        leave_out_relative_programs()
        code = run(sys.argv[1:])
        sys.stdout.flush()
    except OSError as error:
        if error.errno not in _OUTPUT_ERRORS:
            raise
        # otherwise the flush at interpreter exit prints an error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        is_closed = isinstance(error, BrokenPipeError)
        code = PIPE_CLOSED if is_closed else _print_error(f"the output cannot be written: {error.strerror}", 2)
    except KeyboardInterrupt:
        code = INTERRUPTED
    sys.exit(code)


def _open_closed_streams() -> None:
    """Opens the standard streams that the caller has closed: other files would get their descriptors and output."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # in this order, because a file gets the lowest descriptor that is free
            descriptor = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(descriptor, True)
            setattr(sys, name, os.fdopen(descriptor, mode, encoding="utf-8"))


def run(arguments: Sequence[str]) -> int:
    """Runs one command line; returns its exit code. Every expected error is one line on standard error."""
    import typer

    from dg_lsp.cli.app import command_tree
    from dg_lsp.errors import DgLspError

    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # missing if a test has replaced the stream
            stream.reconfigure(errors="replace")  # question marks for characters that the encoding lacks
    try:
        return int(command_tree().main(args=list(arguments), prog_name="dg-lsp", standalone_mode=False) or 0)
    except typer.TyperException as error:
        context = getattr(error, "ctx", None)  # of the command that was misused
        command = context.command_path if context else "dg-lsp"
        problem = error.format_message().replace("Value error, ", "").rstrip(".")
        return _print_error(f"{problem} (see {command} --help)", error.exit_code)
    except DgLspError as error:
        return _print_error(str(error), error.exit_code)
    except typer.Abort:  # Ctrl-C or Ctrl-D at a question
        return _print_error("interrupted", INTERRUPTED)
    except SystemExit:  # raised by typer for a closed pipe
        return PIPE_CLOSED


def _print_error(message: str, code: int) -> int:
    """Prints exactly one line, also for messages with line ends or control characters."""
    from dg_lsp.cli.printing import note

    note(" ".join(message.split()))
    return code
