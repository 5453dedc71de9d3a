"""Everything dg-lsp raises on purpose.

    DgLspError
    ├── UsageError              wrong use or bad input                         exit code 2
    │   ├── InputFileError      a file that is missing, binary, unreadable or not writable
    │   ├── PositionError       a line or column that the file does not have
    │   ├── SettingsError       a setting that is unknown or out of range
    │   ├── SandboxError        model-written programs cannot be run on this machine
    │   └── DaemonError         the daemon cannot be started, reached or stopped
    │       └── DaemonRunsError     there is one already
    ├── RequestError            the model cannot take this request              exit code 2
    ├── ModelError              no model, or no memory for it                   exit code 3
    │   ├── ModelNotFoundError      no such file and no such model name
    │   ├── ModelBrokenError        not a GGUF, or cut short
    │   ├── ModelUnsupportedError   a GGUF this version cannot run
    │   ├── ModelRuntimeError       the changed llama.cpp that a model needs is missing or cannot be built
    │   ├── ModelDownloadError      a model could not be fetched, or what came is not it
    │   ├── ModelMemoryError        the model or its cache does not fit
    │   └── ModelCrashedError       it ended its process again and again
    └── BackendError            the runtime failed while it computed           exit code 3
        └── RemoteError             the server that should answer is gone, refuses or talks nonsense

A cancelled request is no error: it ends with `concurrent.futures.CancelledError`. Exit code 1 (nothing
worth showing) is a result, not an error. Foreign exceptions are mapped once, in `backends/`.
"""


class DgLspError(Exception):
    """The message is one line that says what to do next."""

    exit_code = 2


class UsageError(DgLspError):
    """Wrong use or bad input."""


class InputFileError(UsageError):
    """The file is missing, a directory, binary, unreadable or not writable."""


class PositionError(UsageError):
    """The file has no such line or column."""


class SettingsError(UsageError):
    """A setting is unknown, of the wrong type or out of range."""


class SandboxError(UsageError):
    """Model-written programs cannot be run on this machine."""


class DaemonError(UsageError):
    """The daemon cannot be started, reached or stopped."""


class DaemonRunsError(DaemonError):
    """There is one already."""


class RequestError(DgLspError):
    """The model cannot take this request: canvas too long, prompt too long, ids out of range."""


class ModelError(DgLspError):
    """There is no model to run, or no memory for it."""

    exit_code = 3


class ModelNotFoundError(ModelError):
    """Neither a file nor a known model name."""


class ModelBrokenError(ModelError):
    """The file is no GGUF or ends too early."""


class ModelUnsupportedError(ModelError):
    """A sound GGUF whose architecture or description this version cannot run."""


class ModelRuntimeError(ModelError):
    """The changed llama.cpp that the model needs is not there, or it could not be built."""


class ModelDownloadError(ModelError):
    """The model could not be fetched or written, or what came is not what was expected."""


class ModelMemoryError(ModelError):
    """The weights or the KV cache do not fit into memory."""


class ModelCrashedError(ModelError):
    """The model ended the process that ran it again and again, and is left alone for a while."""


class BackendError(DgLspError):
    """The runtime failed while it computed a step."""

    exit_code = 3


class RemoteError(BackendError):
    """The server that answers instead of a model here is gone, too slow, refuses, or does not speak its own API."""
