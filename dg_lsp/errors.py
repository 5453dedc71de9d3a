"""The errors that dg-lsp raises, as a tree: each family of them has an exit code of the command line.

A cancelled request is not an error: it ends with `concurrent.futures.CancelledError`. Exit code 1 (no candidate)
is a result, not an error. Exceptions of other libraries are mapped once, in `backends/`.
"""

import contextlib
import zlib
from collections.abc import Iterator
from pathlib import Path


def escaped(text: str) -> str:
    """The text with control and other invisible characters as escapes: a file's text must not control a terminal."""
    return "".join(
        char if char.isprintable() or char == "\N{NO-BREAK SPACE}" else char.encode("unicode_escape").decode()
        for char in text
    )


def size_text(num_bytes: float) -> str:
    """A size of files or memory for people, in MB below 1 GB."""
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.0f} MB"


def with_extra(name: str) -> str:
    """The advice to install an extra: from the clone, because no package index has dg-lsp yet."""
    return f"install dg-lsp with the extra {name}, in the clone: uv tool install '.[{name}]' or pip install '.[{name}]'"


class DgLspError(Exception):
    """The message is one line and ends with a remedy. Text of files and servers in it is escaped."""

    exit_code = 2

    def __str__(self) -> str:
        return escaped(super().__str__())


class UsageError(DgLspError):
    """Wrong use or bad input."""


class InputFileError(UsageError):
    """The file is missing, a directory, binary, unreadable or not writable."""


@contextlib.contextmanager
def map_input_errors(verb: str, path: Path, state: str = "") -> Iterator[None]:
    """Maps errors to InputFileError while the user's file is read or written (`verb`); `state` ends the message."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise InputFileError(f"{path} is not UTF-8 (byte {error.start}): convert it first") from error
    except (OSError, ValueError, EOFError, zlib.error) as error:  # ValueError: a NUL in the name
        if isinstance(error, FileNotFoundError) and verb == "read":
            raise InputFileError(f"no such file: {path}") from error
        reason = getattr(error, "strerror", None) or error
        raise InputFileError(f"cannot {verb} {path}: {reason}{state}") from error


class SettingsError(UsageError):
    """A setting is unknown, of the wrong type or out of range."""


class SandboxError(UsageError):
    """Model-written programs cannot be run on this machine."""


class PassingTestError(UsageError):
    """The test that a candidate should make pass, passes already."""

    exit_code = 1


class DaemonError(UsageError):
    """The daemon cannot be started, reached or stopped."""


class DaemonRunsError(DaemonError):
    """A daemon runs already."""


class RequestError(DgLspError):
    """The model cannot take this request: canvas too long, prompt too long, ids out of range."""


class OptionError(RequestError):
    """A sampler option does not apply to the model or the request, or has a value that the model does not take."""

    def __init__(self, option: str, problem: str) -> None:
        super().__init__(f"{option} {problem}")
        self.option = option
        self.problem = problem


class ModelError(DgLspError):
    """There is no model to run: it is unknown, not fetched or damaged, or lacks the llama.cpp that it needs."""

    exit_code = 3


class ModelUnsupportedError(ModelError):
    """A valid file with an architecture or metadata that this version cannot run."""


class ModelMemoryError(ModelError):
    """The weights or the KV cache do not fit into memory."""


class BackendError(DgLspError):
    """The runtime failed during a step."""

    exit_code = 3


class RemoteError(BackendError):
    """The remote server is unreachable or too slow, refuses, or sends an invalid response."""
