"""Writes GGUF files tensor by tensor; holds no more than a block of one at a time."""

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from dg_lsp.errors import ModelBrokenError
from dg_lsp.weights.header import DEFAULT_ALIGNMENT, MAGIC, StoredTensor, reading
from dg_lsp.weights.kinds import F32, Kind
from dg_lsp.weights.values import Value

VERSION = 3
BLOCK_BYTES = 1 << 23

Look = Callable[[int], object]
"""Told how many bytes of weights were written since it was told last."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One to be written."""

    name: str
    shape: tuple[int, ...]
    """As numpy counts: rows last but one, width last."""
    kind: Kind
    blocks: Callable[[], Iterable[bytes | memoryview]]
    """Its bytes in order, asked for once it is written."""

    @property
    def size(self) -> int:
        """Bytes."""
        return prod(self.shape[:-1]) * self.kind.row_bytes(self.shape[-1])


def copied(path: Path, tensor: StoredTensor, name: str | None = None) -> Tensor:
    """A tensor of another file as it is, under its own or another name."""

    def blocks() -> Iterable[bytes]:
        with reading(path), path.open("rb") as file:
            file.seek(tensor.start)
            left = tensor.size
            while left and (block := file.read(min(left, BLOCK_BYTES))):
                left -= len(block)
                yield block

    return Tensor(name or tensor.name, tensor.shape, tensor.kind, blocks)


def vector(name: str, values: npt.NDArray[np.float32]) -> Tensor:
    """A small float32 tensor that is at hand."""
    data = np.ascontiguousarray(values, np.dtype("<f4"))
    return Tensor(name, data.shape, F32, lambda: (data.tobytes(),))


def write_gguf(
    file: IO[bytes], values: Mapping[str, Value], tensors: Sequence[Tensor], look: Look = lambda _: None
) -> None:
    """Writes the whole file from the stream's position on, which must be its beginning.

    Raises:
        ModelBrokenError: a tensor's source ended too early.
        OSError: no room, or no right to write.
    """
    head = bytearray(MAGIC + struct.pack("<IQQ", VERSION, len(tensors), len(values)))
    for key, value in values.items():
        head += _string(key) + struct.pack("<I", value.kind) + value.data
    offset = 0
    for tensor in tensors:
        shape = tuple(reversed(tensor.shape))
        head += _string(tensor.name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        head += struct.pack("<IQ", tensor.kind.number, offset)
        offset += tensor.size + _padding(tensor.size)
    file.write(head + bytes(_padding(len(head))))
    for tensor in tensors:
        written = 0
        for block in tensor.blocks():
            file.write(block)
            written += len(block)
            look(len(block))
        if written != tensor.size:
            raise ModelBrokenError(f"tensor {tensor.name} is cut short: download or export the model again")
        file.write(bytes(_padding(tensor.size)))


def _string(value: str) -> bytes:
    data = value.encode("utf-8")
    return struct.pack("<Q", len(data)) + data


def _padding(size: int) -> int:
    return -size % DEFAULT_ALIGNMENT
