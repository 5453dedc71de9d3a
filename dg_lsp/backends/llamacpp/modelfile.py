"""What can be said of a model file before llama.cpp sees it."""

import re
import struct
from pathlib import Path

from dg_lsp.backends.llamacpp.failures import file_error
from dg_lsp.errors import ModelBrokenError, ModelNotFoundError, ModelUnsupportedError

_HEADER = struct.Struct("<4sIqq")  # magic, version, number of tensors, number of key-value pairs
_START_BYTES = 1 << 16
"""The architecture's own keys stand before the vocabulary."""
_NUM_LAYERS = re.compile(rb"\.block_count\x04\0\0\0(.{4})", re.DOTALL)
_MAX_LAYERS = 512  # more of them make llama.cpp abort the process


def checked_size(path: Path) -> int:
    """The size in bytes of a file that begins like a GGUF.

    Raises:
        ModelNotFoundError: no such file, or a directory.
        ModelBrokenError: not a GGUF, or it ends inside its first bytes.
        ModelUnsupportedError: it would make llama.cpp abort the process.
        ModelError: it cannot be read.
    """
    try:
        if path.is_dir():
            raise ModelNotFoundError(f"{path} is a directory; name the GGUF file in it")
        with path.open("rb") as file:
            start = file.read(_START_BYTES)
            size = file.seek(0, 2)
    except FileNotFoundError as error:
        raise ModelNotFoundError(f"{path} does not exist; check the path of the model") from error
    except OSError as error:
        raise file_error(path, error) from error
    _check_start(path, start)
    return size


def _check_start(path: Path, start: bytes) -> None:
    if start[:4] != b"GGUF":
        raise ModelBrokenError(f"{path} is not a GGUF file; name a model in GGUF format")
    if len(start) < _HEADER.size:
        raise ModelBrokenError(f"{path} is cut short; download or export it again")
    _, _, num_tensors, _ = _HEADER.unpack_from(start)
    if num_tensors == 0:
        raise ModelBrokenError(f"{path} holds a vocabulary but no weights; name a whole model")
    for match in _NUM_LAYERS.finditer(start):
        if (layers := int.from_bytes(match[1], "little")) > _MAX_LAYERS:
            raise ModelUnsupportedError(
                f"{path} names {layers} layers, llama.cpp takes {_MAX_LAYERS}; use another model"
            )
