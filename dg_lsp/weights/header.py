"""What stands at the beginning of a GGUF file: metadata, and where each tensor lies. Reads no weight.

The vocabulary of a large model is 15 MB of strings; they are walked over once, not made into objects.
"""

import contextlib
import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dg_lsp.errors import ModelBrokenError, ModelError, ModelNotFoundError, ModelUnsupportedError
from dg_lsp.weights.kinds import KINDS, Kind
from dg_lsp.weights.values import ARRAY, SCALARS, STRING, Value

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
_MAX_DIMENSIONS = 4


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a file."""

    name: str
    shape: tuple[int, ...]
    """As numpy counts: rows last but one, width last."""
    kind: Kind
    start: int
    """Bytes from the file's beginning."""

    @property
    def size(self) -> int:
        """Bytes."""
        return prod(self.shape[:-1]) * self.kind.row_bytes(self.shape[-1])


@dataclass(frozen=True, slots=True)
class Header:
    """A file without its weights."""

    path: Path
    values: Mapping[str, Value]
    """In the file's order."""
    tensors: Mapping[str, StoredTensor]
    """By name, in the file's order."""

    @property
    def architecture(self) -> str:
        """llama.cpp's name of it; empty where the file gives none."""
        value = self.values.get("general.architecture")
        return str(value.read()) if value else ""

    def rows(self, name: str) -> npt.NDArray[np.uint8]:
        """A tensor by memory map, as it is stored: (rows, bytes of a row). Nothing is read until it is looked at."""
        tensor = self.tensors[name]
        row_bytes = tensor.kind.row_bytes(tensor.shape[-1])
        shape = (prod(tensor.shape[:-1]), row_bytes)
        return np.memmap(self.path, np.uint8, "r", offset=tensor.start, shape=shape)


def read_header(path: Path) -> Header:
    """Reads a file's beginning and checks that all its weights are there.

    Raises:
        ModelNotFoundError: no such file.
        ModelBrokenError: no GGUF, damaged, or cut short.
        ModelUnsupportedError: a version, byte order or number format that is not known.
        ModelError: it cannot be read.
    """
    with reading(path), path.open("rb") as file:
        if file.read(4) != MAGIC:
            raise ModelBrokenError(f"{path} is not a GGUF file: name a model in GGUF format")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            return _parse(path, _Cursor(path, view))


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """What the system says while a file is read, as an error that says what to do."""
    try:
        yield
    except FileNotFoundError as error:
        raise ModelNotFoundError(f"{path} does not exist: check the path of the model") from error
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ModelError(f"{path} cannot be read: {reason}; check the file and its permissions") from error


class _Cursor:
    """Walks over the file; whatever leads beyond its end is said to be cut short."""

    def __init__(self, path: Path, view: mmap.mmap) -> None:
        self.path = path
        self.view = view
        self.at = len(MAGIC)

    def broken(self, problem: str) -> ModelBrokenError:
        return ModelBrokenError(f"{self.path} {problem}: download or export it again")

    def check(self, end: int) -> None:
        if end > len(self.view):
            raise self.broken("is cut short")

    def number(self, letter: str) -> int:
        size = struct.calcsize(f"<{letter}")
        self.check(self.at + size)
        (value,) = struct.unpack_from(f"<{letter}", self.view, self.at)
        self.at += size
        return int(value)

    def string(self) -> bytes:
        start = self.skip_string()
        return self.view[start + 8 : self.at]

    def skip_string(self) -> int:
        """Where it began."""
        start = self.at
        size = self.number("Q")
        self.check(self.at + size)
        self.at += size
        return start

    def value(self) -> Value:
        kind = self.number("I")
        start = self.at
        if kind == ARRAY:
            self._skip_array()
        else:
            self._skip(kind, 1)
        return Value(kind, self.view[start : self.at])

    def _skip_array(self) -> None:
        kind, length = self.number("I"), self.number("Q")
        self._skip(kind, length)

    def _skip(self, kind: int, count: int) -> None:
        if kind in SCALARS:
            self.at += struct.calcsize(f"<{SCALARS[kind]}") * count
            self.check(self.at)
            return
        if kind != STRING:
            raise self.broken("is damaged (a value of an unknown kind)")
        self.check(self.at + 8 * count)
        for _ in range(count):
            self.skip_string()


def _parse(path: Path, cursor: _Cursor) -> Header:
    version = cursor.number("I")
    if version not in VERSIONS:
        problem = "of the other byte order" if version >> 16 else f"of version {version}"
        raise ModelUnsupportedError(f"{path} is a GGUF {problem}, which dg-lsp cannot read: use another file")
    num_tensors, num_values = cursor.number("Q"), cursor.number("Q")
    values = {}
    for _ in range(num_values):
        key = cursor.string().decode("utf-8", "replace")
        values[key] = cursor.value()
    found = [_tensor(cursor) for _ in range(num_tensors)]
    alignment = values["general.alignment"].read() if "general.alignment" in values else DEFAULT_ALIGNMENT
    if not isinstance(alignment, int) or alignment < 1:
        raise cursor.broken("is damaged (general.alignment)")
    start = -(-cursor.at // alignment) * alignment
    tensors = {name: StoredTensor(name, shape, kind, start + offset) for name, shape, kind, offset in found}
    for tensor in tensors.values():
        cursor.check(tensor.start + tensor.size)
    return Header(path, values, tensors)


def _tensor(cursor: _Cursor) -> tuple[str, tuple[int, ...], Kind, int]:
    name = cursor.string().decode("utf-8", "replace")
    num_dimensions = cursor.number("I")
    if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
        raise cursor.broken(f"is damaged (tensor {name} has {num_dimensions} dimensions)")
    shape = tuple(reversed([cursor.number("Q") for _ in range(num_dimensions)]))
    number = cursor.number("I")
    kind = KINDS.get(number)
    if kind is None:
        raise ModelUnsupportedError(
            f"{cursor.path}: tensor {name} is of number format {number}, which dg-lsp does not know: use another file"
        )
    if shape[-1] % kind.block_weights:
        raise cursor.broken(f"is damaged (tensor {name} has rows of {shape[-1]} weights as {kind.name})")
    return name, shape, kind, cursor.number("Q")
