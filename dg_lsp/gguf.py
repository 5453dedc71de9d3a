"""GGUF files: reads the metadata and the positions of tensors, and writes whole files.

Arrays stay bytes until `Value.read`. The vocabulary of a large model has 15 MB of strings: the `gguf` package makes
Python objects of them in 20 s, this module reads the file in 0.4 s.
"""

import contextlib
import mmap
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from dg_lsp.errors import ModelError, ModelUnsupportedError


@dataclass(frozen=True, slots=True)
class TensorType:
    """A number format. A row has a whole number of blocks."""

    number: int  # `enum ggml_type`
    name: str
    block_weights: int
    block_bytes: int

    def row_bytes(self, width: int) -> int:
        """Bytes of a row of `width` weights.

        Raises ValueError: the row is not a whole number of blocks.
        """
        if width % self.block_weights:
            raise ValueError(f"rows of {width} weights cannot be stored as {self.name}")
        return width // self.block_weights * self.block_bytes

    def num_bytes(self, shape: tuple[int, ...]) -> int:
        """Bytes of a tensor; one without dimensions is a single number."""
        return prod(shape[:-1]) * self.row_bytes(shape[-1] if shape else 1)


TENSOR_TYPES = {
    kind.number: kind
    for kind in (
        TensorType(0, "F32", 1, 4),
        TensorType(1, "F16", 1, 2),
        TensorType(2, "Q4_0", 32, 18),
        TensorType(3, "Q4_1", 32, 20),
        TensorType(6, "Q5_0", 32, 22),
        TensorType(7, "Q5_1", 32, 24),
        TensorType(8, "Q8_0", 32, 34),
        TensorType(10, "Q2_K", 256, 84),
        TensorType(11, "Q3_K", 256, 110),
        TensorType(12, "Q4_K", 256, 144),
        TensorType(13, "Q5_K", 256, 176),
        TensorType(14, "Q6_K", 256, 210),
        TensorType(16, "IQ2_XXS", 256, 66),
        TensorType(17, "IQ2_XS", 256, 74),
        TensorType(18, "IQ3_XXS", 256, 98),
        TensorType(19, "IQ1_S", 256, 50),
        TensorType(20, "IQ4_NL", 32, 18),
        TensorType(21, "IQ3_S", 256, 110),
        TensorType(22, "IQ2_S", 256, 82),
        TensorType(23, "IQ4_XS", 256, 136),
        TensorType(24, "I8", 1, 1),
        TensorType(25, "I16", 1, 2),
        TensorType(26, "I32", 1, 4),
        TensorType(27, "I64", 1, 8),
        TensorType(28, "F64", 1, 8),
        TensorType(29, "IQ1_M", 256, 56),
        TensorType(30, "BF16", 1, 2),
        TensorType(34, "TQ1_0", 256, 54),
        TensorType(35, "TQ2_0", 256, 66),
        TensorType(39, "MXFP4", 32, 17),
        TensorType(40, "NVFP4", 64, 36),
        TensorType(41, "Q1_0", 128, 18),
        TensorType(42, "Q2_0", 64, 18),
    )
}
"""By number."""
F32, F16, BF16 = TENSOR_TYPES[0], TENSOR_TYPES[1], TENSOR_TYPES[30]

STRING, ARRAY = 8, 9
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Type of a value -> format character of `struct`."""
_UINT32, _INT32, _FLOAT32, _BOOL = 4, 5, 6, 7
Scalar = int | float | bool | str


@dataclass(frozen=True, slots=True)
class Value:
    """A metadata value in the file's encoding."""

    kind: int
    data: bytes
    """Little endian. An array starts with the type and number of its elements."""

    def read(self) -> Scalar | list[Scalar]:
        """Decodes the value. Slow for the arrays of a vocabulary."""
        if self.kind == STRING:
            return str(self.data[8:], "utf-8", "replace")
        if self.kind in SCALARS:
            scalar: Scalar = struct.unpack(f"<{SCALARS[self.kind]}", self.data)[0]
            return scalar
        kind, length = struct.unpack_from("<IQ", self.data)
        if kind in SCALARS:
            return list(struct.unpack_from(f"<{length}{SCALARS[kind]}", self.data, 12))
        texts: list[Scalar] = []
        at = 12
        for _ in range(length):
            (size,) = struct.unpack_from("<Q", self.data, at)
            at += 8 + size
            texts.append(str(self.data[at - size : at], "utf-8", "replace"))
        return texts


def _encoded(kind: int, value: Any) -> bytes:
    if kind != STRING:
        return struct.pack(f"<{SCALARS[kind]}", value)
    data: bytes = value.encode("utf-8")
    return struct.pack("<Q", len(data)) + data


def _scalar(kind: int, value: Scalar) -> Value:
    return Value(kind, _encoded(kind, value))


def _array(kind: int, values: Sequence[Scalar]) -> Value:
    return Value(ARRAY, struct.pack("<IQ", kind, len(values)) + b"".join(_encoded(kind, value) for value in values))


uint32, float32, flag, text = (partial(_scalar, kind) for kind in (_UINT32, _FLOAT32, _BOOL, STRING))
"""Encode a number from 0 to 2**32 - 1, a number in single precision, a truth value, a string."""
int32s, float32s, flags, texts = (partial(_array, kind) for kind in (_INT32, _FLOAT32, _BOOL, STRING))
"""Encode an array of integers, of numbers in single precision, of truth values, of strings."""


MAGIC = b"GGUF"
_READ_VERSIONS, _WRITE_VERSION = (2, 3), 3
_DEFAULT_ALIGNMENT = 32
_ALIGNMENT_KEY = "general.alignment"
_MAX_DIMENSIONS = 4
_MAX_HEADER, _MAX_ENTRIES = 64 << 20, 1 << 16
"""Bytes, and values or tensors: the largest vocabularies take 15 MB. A sparse file could claim any number of them."""


@dataclass(frozen=True, slots=True)
class TensorShape:
    """What a tensor is called, and how it is stored."""

    name: str
    shape: tuple[int, ...]  # in numpy's order: the width comes last
    kind: TensorType

    @property
    def size(self) -> int:
        """Bytes."""
        return self.kind.num_bytes(self.shape)


@dataclass(frozen=True, slots=True)
class StoredTensor(TensorShape):
    """A tensor in a file."""

    path: Path
    start: int  # offset in bytes from the start of the file


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    """Metadata and tensor positions of a file."""

    path: Path
    values: Mapping[str, Value]  # in the file's order
    tensors: Mapping[str, StoredTensor]  # by name, in the file's order

    @property
    def architecture(self) -> str:
        """llama.cpp's name of the architecture, or the empty string."""
        return str(self.read("general.architecture", ""))

    def read(self, key: str, default: Any = None) -> Any:
        """The metadata value of a key; see `Value.read`."""
        return self.values[key].read() if key in self.values else default

    def rows(self, name: str) -> npt.NDArray[np.uint8]:
        """Maps a tensor into memory in its stored format; shape (rows, bytes of a row)."""
        tensor = self.tensors[name]
        row_bytes = tensor.kind.row_bytes(tensor.shape[-1])
        shape = (prod(tensor.shape[:-1]), row_bytes)
        return np.memmap(self.path, np.uint8, "r", offset=tensor.start, shape=shape)


def read_header(path: Path, source: Path | None = None) -> GGUFHeader:
    """Reads the header and checks that the file contains all of its weights. `source` is another path of the file.

    Raises:
        ModelError: the file does not exist, cannot be read, is not a GGUF, damaged or cut short.
        ModelUnsupportedError: dg-lsp does not support the version, byte order or number format.
    """
    with map_file_errors(path), (source or path).open("rb") as file:
        if file.read(4) != MAGIC:
            raise ModelError(f"{path} is not a GGUF file: name a model in GGUF format")
        size = os.fstat(file.fileno()).st_size
        with mmap.mmap(file.fileno(), min(size, _MAX_HEADER), access=mmap.ACCESS_READ) as view:
            return _parse(source or path, _Cursor(path, view), size)


@contextlib.contextmanager
def map_file_errors(path: Path) -> Iterator[None]:
    """Maps errors of the operating system while a model file is read to ModelError."""
    try:
        yield
    except FileNotFoundError as error:
        raise ModelError(f"{path} does not exist: check the path of the model") from error
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ModelError(f"{path} cannot be read: {reason}; check the file and its permissions") from error


class _Cursor:
    """Reads values one after another; raises ModelError at the end of the file."""

    def __init__(self, path: Path, view: mmap.mmap) -> None:
        self.path = path
        self.view = view
        self.at = len(MAGIC)

    def broken(self, problem: str) -> ModelError:
        return ModelError(f"{self.path} {problem}: download or export it again")

    def move(self, size: int) -> int:
        """Moves behind the next bytes, and returns where they start."""
        start = self.at
        self.at += size
        if self.at > len(self.view):
            raise self.broken("is cut short or damaged")
        return start

    def number(self, letter: str) -> int:
        start = self.move(struct.calcsize(f"<{letter}"))
        return int(struct.unpack_from(f"<{letter}", self.view, start)[0])

    def string(self) -> bytes:
        start = self.move(self.number("Q"))
        return self.view[start : self.at]

    def value(self) -> Value:
        kind = self.number("I")
        start = self.at
        is_array = kind == ARRAY
        self.skip(self.number("I") if is_array else kind, self.number("Q") if is_array else 1)
        return Value(kind, self.view[start : self.at])

    def skip(self, kind: int, count: int) -> None:
        if kind in SCALARS:
            self.move(struct.calcsize(f"<{SCALARS[kind]}") * count)
        elif kind != STRING or 8 * count > len(self.view) - self.at:  # a string has at least its length
            raise self.broken("is cut short or damaged")
        else:
            for _ in range(count):
                self.move(self.number("Q"))


def _parse(source: Path, cursor: _Cursor, size: int) -> GGUFHeader:
    version = cursor.number("I")
    if version not in _READ_VERSIONS:
        problem = f"{cursor.path} is a GGUF of version {version} or of the other byte order"
        raise ModelUnsupportedError(f"{problem}, which dg-lsp cannot read: use another file")
    num_tensors, num_values = cursor.number("Q"), cursor.number("Q")
    if max(num_tensors, num_values) > _MAX_ENTRIES:
        raise cursor.broken("is cut short or damaged")
    values = {}
    for _ in range(num_values):
        key = cursor.string().decode("utf-8", "replace")
        values[key] = cursor.value()
    entries = [_tensor(cursor) for _ in range(num_tensors)]
    alignment = _alignment(values)
    if alignment < 1:
        raise cursor.broken(f"is damaged ({_ALIGNMENT_KEY})")
    start = -(-cursor.at // alignment) * alignment
    tensors = {name: StoredTensor(name, shape, kind, source, start + offset) for name, shape, kind, offset in entries}
    if any(tensor.start + tensor.size > size for tensor in tensors.values()):
        raise cursor.broken("is cut short or damaged")
    return GGUFHeader(cursor.path, values, tensors)


def _alignment(values: Mapping[str, Value]) -> int:
    """0 if the value is not an integer."""
    alignment = values[_ALIGNMENT_KEY].read() if _ALIGNMENT_KEY in values else _DEFAULT_ALIGNMENT
    return alignment if isinstance(alignment, int) else 0


def _tensor(cursor: _Cursor) -> tuple[str, tuple[int, ...], TensorType, int]:
    name = cursor.string().decode("utf-8", "replace")
    num_dimensions = cursor.number("I")
    shape = tuple(reversed([cursor.number("Q") for _ in range(min(num_dimensions, _MAX_DIMENSIONS))]))
    number = cursor.number("I")
    if not 1 <= num_dimensions <= _MAX_DIMENSIONS or 0 in shape:
        raise cursor.broken(f"is damaged (tensor {name} has {num_dimensions} dimensions, {shape})")
    kind = TENSOR_TYPES.get(number)
    if kind is None:
        problem = f"{cursor.path}: tensor {name} has number format {number}, which dg-lsp does not support"
        raise ModelUnsupportedError(f"{problem}: use another file")
    if shape[-1] % kind.block_weights:
        raise cursor.broken(f"is damaged (tensor {name} has the shape {shape} as {kind.name})")
    return name, shape, kind, cursor.number("Q")


BLOCK_BYTES = 1 << 23
ProgressCallback = Callable[[int], object]
"""Receives the number of bytes of weights that were written since the last call."""


@dataclass(frozen=True, slots=True)
class Tensor(TensorShape):
    """A tensor to write."""

    blocks: Callable[[], Iterable[bytes | memoryview]]
    """Returns the tensor's bytes in order; called when the tensor is written."""


def copied(tensor: StoredTensor, name: str | None = None) -> Tensor:
    """A tensor of another file, unchanged, under its own or another name."""

    def blocks() -> Iterable[bytes]:
        with map_file_errors(tensor.path), tensor.path.open("rb") as file:
            file.seek(tensor.start)
            num_left = tensor.size
            while num_left and (block := file.read(min(num_left, BLOCK_BYTES))):
                num_left -= len(block)
                yield block

    return Tensor(name or tensor.name, tensor.shape, tensor.kind, blocks)


def vector(name: str, values: npt.NDArray[np.float32]) -> Tensor:
    """A float32 tensor from memory."""
    data = np.ascontiguousarray(values, np.dtype("<f4"))
    return Tensor(name, data.shape, F32, lambda: (data.tobytes(),))


def write_gguf(
    file: IO[bytes],
    values: Mapping[str, Value],
    tensors: Sequence[Tensor],
    on_progress: ProgressCallback = lambda _: None,
) -> None:
    """Writes a whole file; the stream must be at its start.

    Raises:
        ModelError: the source of a tensor ended early.
        OSError: the disk is full, or writing is not allowed.
    """
    alignment = _alignment(values)
    head = bytearray(MAGIC + struct.pack("<IQQ", _WRITE_VERSION, len(tensors), len(values)))
    for key, value in values.items():
        head += _encoded(STRING, key) + struct.pack("<I", value.kind) + value.data
    offset = 0
    for tensor in tensors:
        shape = tuple(reversed(tensor.shape))
        head += _encoded(STRING, tensor.name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        head += struct.pack("<IQ", tensor.kind.number, offset)
        offset += tensor.size + -tensor.size % alignment
    file.write(head + bytes(-len(head) % alignment))
    for tensor in tensors:
        written = 0
        for block in tensor.blocks():
            file.write(block)
            written += len(block)
            on_progress(len(block))
        if written != tensor.size:
            raise ModelError(f"tensor {tensor.name} is cut short: download or export the model again")
        file.write(bytes(-tensor.size % alignment))
