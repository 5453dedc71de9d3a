"""Tensors of a GGUF file beside llama.cpp: read by memory map, made float32 by ggml itself.

llama.cpp keeps its own copy of the weights where nobody else can read it, on a GPU as a rule.
"""

import ctypes
import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dg_lsp.backends.llamacpp.library import library
from dg_lsp.diffusion.denoiser import Floats
from dg_lsp.errors import ModelUnsupportedError
from dg_lsp.weights.header import Header
from dg_lsp.weights.kinds import F32, Kind

Rows = npt.NDArray[np.uint8]

MAPPED_BYTES = 16 << 20
"""A smaller tensor is read, not mapped: then nobody who cuts its file short later can end this process."""


class _Traits(ctypes.Structure):
    """The beginning of `ggml_type_traits`."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("block_weights", ctypes.c_int64),
        ("block_weights_interleaved", ctypes.c_int64),
        ("block_bytes", ctypes.c_size_t),
        ("is_quantized", ctypes.c_bool),
        ("to_float", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A matrix as it is stored, quantized or not."""

    raw: Rows
    """Shape (N, bytes of a row)."""
    kind: Kind
    width: int
    """Numbers of a row."""

    @classmethod
    def of(cls, header: Header, name: str, *, mapped_bytes: int = MAPPED_BYTES) -> "Tensor":
        """One of a file's, a vector as one row; mapped from so many bytes on.

        Raises:
            ModelUnsupportedError: there is none of that name, or in a number format that ggml cannot make float32.
        """
        stored = header.tensors.get(name)
        if stored is None:
            raise ModelUnsupportedError(f"{header.path} has no tensor {name}; repack the model again")
        if stored.kind != F32 and not _traits(stored.kind.number).to_float:
            raise ModelUnsupportedError(f"{header.path}: {name} cannot be read as {stored.kind.name}; use another type")
        rows = header.rows(name)
        return cls(rows if stored.size >= mapped_bytes else np.array(rows), stored.kind, stored.shape[-1])

    def floats(self) -> Floats:
        """All of it, shape (N, width)."""
        rows = np.empty((len(self.raw), self.width), dtype=np.float32)
        self.decode(slice(None), rows)
        return rows

    def decode(self, rows: npt.NDArray[np.int32] | slice, out: Floats) -> None:
        """Fills `out`, of shape (number of rows, width), with rows."""
        # kept in a variable: a temporary's address would dangle
        packed = np.ascontiguousarray(self.raw[rows])
        if self.kind == F32:
            out[:] = packed.view(np.float32)
        else:
            _traits(self.kind.number).to_float(packed.ctypes.data, out.ctypes.data, out.size)


@functools.cache
def _traits(kind: int) -> Any:
    """ggml's own record of a number format."""
    function = library().ggml.ggml_get_type_traits
    function.restype, function.argtypes = ctypes.POINTER(_Traits), [ctypes.c_int]
    return function(kind).contents
