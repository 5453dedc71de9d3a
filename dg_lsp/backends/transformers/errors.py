"""Maps the exceptions of torch, transformers and tokenizers to dg-lsp's errors."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from dg_lsp.errors import BackendError, ModelBrokenError, ModelMemoryError, with_extra

_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "bad_alloc")


@contextmanager
def map_step_errors(what: str) -> Iterator[None]:
    """Raises `BackendError` for an exception of the runtime while it computes `what`."""
    try:
        yield
    except (RuntimeError, MemoryError, ValueError, NotImplementedError) as error:
        if is_out_of_memory(error):
            raise BackendError(f"torch: not enough memory for the {what}; lower num_slots or context_length") from error
        raise BackendError(f"torch: the {what} failed ({one_line(error)}); see `dg-lsp doctor`") from error


@contextmanager
def map_tokenizer_errors() -> Iterator[None]:
    """Raises `BackendError` for an exception of the package tokenizers, whose panics are no `Exception`."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise BackendError(f"tokenizers: the text cannot be tokenized ({one_line(error)})") from error
        raise


@contextmanager
def map_load_errors(path: Path) -> Iterator[None]:
    """Raises `ModelError` for an exception while files are read, `BackendError` for a missing package."""
    try:
        yield
    except ImportError as error:
        raise BackendError(f"{one_line(error)}; {with_extra('transformers')}") from error
    except Exception as error:  # tokenizers raises bare `Exception`, transformers raises classes of its own
        if is_out_of_memory(error):
            raise ModelMemoryError(f"{path} does not fit into memory; use a quantized GGUF") from error
        raise ModelBrokenError(f"{path} cannot be loaded ({one_line(error)}); download or export it again") from error


def is_out_of_memory(error: Exception) -> bool:
    """Whether an allocation failed, on a device or in main memory."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return any(text in str(error).lower() for text in _OUT_OF_MEMORY)


def one_line(error: BaseException) -> str:
    """The start of the error's message, without line ends."""
    return " ".join(str(error).split())[:200] or type(error).__name__
