"""A GGUF under the name of another architecture, so that llama.cpp gives it the KV cache that it lacks under its own.

Only names in the header change; weights are copied as they are, into memory where the system has files there (Linux),
else into a temporary file. Nothing is left behind.
"""

import contextlib
import os
import shutil
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Protocol

from dg_lsp.errors import ModelBrokenError, ModelError, ModelMemoryError, ModelUnsupportedError
from dg_lsp.system import system_free

CACHED = {"dream": "qwen2", "rnd1": "qwen3moe", "llada": "llama"}
"""Architectures without a KV cache, and those that compute the same layers with one."""

_ARCHITECTURE = b"general.architecture"
_ORIGIN = b"general.relabelled_from"
_ALIGNMENT = b"general.alignment"
_SPLIT = b"split.count"
_MASKING = b".attention.causal"
"""What llama.cpp would take for the attention of the prompt as well."""
_DEFAULT_ALIGNMENT = 32
_STRING, _ARRAY = 8, 9
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of a value by its type."""
_CHUNK = 64 << 20
_LONGEST = 1 << 30
"""Bytes of one value; more are damage."""
IN_MEMORY = hasattr(os, "memfd_create") and Path("/proc/self/fd").exists()
"""Whether a copy lies in memory, to be mapped, and not on disk, to be read."""


class _Source(Protocol):
    def read(self, size: int, /) -> bytes: ...


def architecture_of(path: Path) -> str:
    """`general.architecture` of a GGUF, which stands first in its header; empty where it does not."""
    with path.open("rb") as file, contextlib.suppress(struct.error):
        header = _Header(file)
        header.start()
        key, kind = header.text(), header.number("<I")
        if (key, kind) == (_ARCHITECTURE, _STRING):
            return header.text().decode("utf-8", "replace")
    return ""


@contextlib.contextmanager
def relabelled(path: Path, architecture: str) -> Iterator[Path]:
    """The path of a copy that says it has another architecture, and in `general.relabelled_from` which it had.

    Raises:
        ModelBrokenError: the file ends in its header.
        ModelUnsupportedError: it is one of several parts.
        ModelMemoryError: it does not fit into the memory that is free.
        ModelError: there is no room for the copy on the disk.
    """
    if IN_MEMORY and path.stat().st_size > (free := system_free()):
        raise ModelMemoryError(
            f"a copy of {path} needs {path.stat().st_size >> 20} MiB of memory, {free >> 20} are free; "
            "set runtime.prompt_attention to exact"
        )
    with path.open("rb") as source, _nameless(path) as (target, copy):
        try:
            target.write(_header(path, source, architecture.encode()))
            shutil.copyfileobj(source, target, _CHUNK)
            target.flush()
        except struct.error as error:
            raise ModelBrokenError(f"{path} is cut short; download or export it again") from error
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise ModelError(
                f"no room for a copy of {path}: {reason}; set runtime.prompt_attention to exact"
            ) from error
        yield copy


@contextlib.contextmanager
def _nameless(path: Path) -> Iterator[tuple[BinaryIO, Path]]:
    """A file that goes away, and a path to read it by meanwhile."""
    if IN_MEMORY:
        with os.fdopen(os.memfd_create(path.stem), "wb") as file:
            yield file, Path(f"/proc/self/fd/{file.fileno()}")
        return
    handle, name = tempfile.mkstemp(suffix=".gguf")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file, Path(name)
    finally:
        Path(name).unlink()


def _header(path: Path, source: BinaryIO, architecture: bytes) -> bytes:
    """The new header, padded; the source stands where its weights begin afterwards."""
    header = _Header(source)
    version, num_tensors, num_keys = header.start()
    keys = dict(header.entry() for _ in range(num_keys))
    if _SPLIT in keys and int.from_bytes(keys[_SPLIT][4:], "little") > 1:
        raise ModelUnsupportedError(
            f"{path} is one of several parts; join them, or set runtime.prompt_attention to exact"
        )
    old = keys[_ARCHITECTURE][12:]
    renamed = {
        key.replace(old + b".", architecture + b".", 1) if key.startswith(old + b".") else key: value
        for key, value in keys.items()
        if key != old + _MASKING
    }
    renamed |= {_ARCHITECTURE: _string_value(architecture), _ORIGIN: _string_value(old)}
    tensors = b"".join(header.tensor() for _ in range(num_tensors))
    alignment = int.from_bytes(keys[_ALIGNMENT][4:], "little") if _ALIGNMENT in keys else _DEFAULT_ALIGNMENT
    source.seek(-source.tell() % alignment, os.SEEK_CUR)
    start = struct.pack("<4sIQQ", b"GGUF", version, num_tensors, len(renamed))
    new = b"".join([start, *(_string(key) + value for key, value in renamed.items()), tensors])
    return new + bytes(-len(new) % alignment)


class _Header:
    """Reads what stands before the weights, piece by piece, in the bytes that it has there."""

    def __init__(self, source: _Source) -> None:
        self._source = source

    def start(self) -> tuple[int, int, int]:
        """Version, number of tensors, number of keys."""
        _, version, num_tensors, num_keys = struct.unpack("<4sIQQ", self._bytes(24))
        return version, num_tensors, num_keys

    def entry(self) -> tuple[bytes, bytes]:
        """A key, and its type and value as they stand."""
        key, kind = self.text(), self._bytes(4)
        return key, kind + self._value(int.from_bytes(kind, "little"))

    def tensor(self) -> bytes:
        """Name, shape, type and place of a tensor."""
        name, dimensions = self.text(), self._bytes(4)
        return _string(name) + dimensions + self._bytes(8 * int.from_bytes(dimensions, "little") + 12)

    def number(self, layout: str) -> int:
        """One whole number."""
        return int(struct.unpack(layout, self._bytes(struct.calcsize(layout)))[0])

    def text(self) -> bytes:
        """A string."""
        return self._bytes(self.number("<Q"))

    def _value(self, kind: int) -> bytes:
        if kind == _STRING:
            return _string(self.text())
        if kind in _SIZES:
            return self._bytes(_SIZES[kind])
        if kind != _ARRAY:
            raise struct.error("no such type")
        of, count = self.number("<I"), self.number("<Q")
        start = struct.pack("<IQ", of, count)
        if of in _SIZES:
            return start + self._bytes(_SIZES[of] * count)
        return start + b"".join(self._value(of) for _ in range(count))

    def _bytes(self, size: int) -> bytes:
        found = self._source.read(size) if size <= _LONGEST else b""
        if len(found) < size:
            raise struct.error("too short")
        return found


def _string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def _string_value(text: bytes) -> bytes:
    return struct.pack("<I", _STRING) + _string(text)
