"""Every way torch and transformers say no, and which of our errors it becomes."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from dg_lsp.errors import BackendError, DgLspError, ModelBrokenError, ModelMemoryError

_NO_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "bad_alloc")


@contextmanager
def mapped(what: str) -> Iterator[None]:
    """What fails inside while a step is computed becomes a `BackendError`."""
    try:
        yield
    except DgLspError:
        raise
    except (RuntimeError, MemoryError, ValueError, NotImplementedError) as error:
        raise step_error(what, error) from error


def step_error(what: str, error: Exception) -> BackendError:
    """A computation failed."""
    if is_memory(error):
        return BackendError(f"torch: there was no memory for the {what}; lower num_slots or context_length")
    return BackendError(f"torch: the {what} failed ({_one_line(str(error))}); see `dg-lsp doctor`")


@contextmanager
def loading(path: Path) -> Iterator[None]:
    """What fails inside while files are read becomes a `ModelError`, or a `BackendError` where a package is missing."""
    try:
        yield
    except DgLspError:
        raise
    except ImportError as error:
        raise BackendError(f"{_one_line(str(error))}; run pip install 'dg-lsp[hf]'") from error
    except Exception as error:
        # tokenizers, in Rust, raises bare ones, transformers classes of its own
        raise load_error(path, error) from error


def load_error(folder: Path, error: Exception) -> DgLspError:
    """transformers could not make a model of the folder."""
    if is_memory(error):
        return ModelMemoryError(f"{folder} does not fit into memory; set runtime.dtype to a smaller type")
    return ModelBrokenError(f"{folder} cannot be loaded ({_one_line(str(error))}); download or export it again")


def is_memory(error: Exception) -> bool:
    """Whether there was no room, on a device or in the machine."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return any(text in str(error).lower() for text in _NO_MEMORY)


def _one_line(text: str) -> str:
    return " ".join(text.split())[:200] or "no reason given"
