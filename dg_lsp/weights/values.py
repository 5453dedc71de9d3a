"""Values of a GGUF file's metadata: kept as the file's own bytes, so that copying one changes nothing."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

STRING, ARRAY = 8, 9
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Kind of a value -> struct's letter."""
_UINT32, _INT32, _FLOAT32, _BOOL = 4, 5, 6, 7

Plain = int | float | bool | str


@dataclass(frozen=True, slots=True)
class Value:
    """One value, as it stands in a file."""

    kind: int
    data: bytes
    """Little endian; of an array its elements' kind and number first."""

    def read(self) -> Plain | list[Plain]:
        """The value for Python; takes a while for a vocabulary."""
        if self.kind == STRING:
            return str(self.data[8:], "utf-8", "replace")
        if self.kind in SCALARS:
            plain: Plain = struct.unpack(f"<{SCALARS[self.kind]}", self.data)[0]
            return plain
        kind, length = struct.unpack_from("<IQ", self.data)
        if kind in SCALARS:
            return list(struct.unpack_from(f"<{length}{SCALARS[kind]}", self.data, 12))
        return list(self._strings(length))

    def _strings(self, length: int) -> list[str]:
        found, at = [], 12
        for _ in range(length):
            (size,) = struct.unpack_from("<Q", self.data, at)
            at += 8 + size
            found.append(str(self.data[at - size : at], "utf-8", "replace"))
        return found


def text(value: str) -> Value:
    """A string."""
    return Value(STRING, _string(value))


def uint32(value: int) -> Value:
    """A number from 0."""
    return Value(_UINT32, struct.pack("<I", value))


def float32(value: float) -> Value:
    """A number with 24 bits."""
    return Value(_FLOAT32, struct.pack("<f", value))


def flag(value: bool) -> Value:
    """True or false."""
    return Value(_BOOL, struct.pack("<?", value))


def texts(values: Sequence[str]) -> Value:
    """An array of strings."""
    return Value(ARRAY, struct.pack("<IQ", STRING, len(values)) + b"".join(map(_string, values)))


def int32s(values: Sequence[int]) -> Value:
    """An array of numbers."""
    return Value(ARRAY, struct.pack(f"<IQ{len(values)}i", _INT32, len(values), *values))


def float32s(values: Sequence[float]) -> Value:
    """An array of numbers with 24 bits."""
    return Value(ARRAY, struct.pack(f"<IQ{len(values)}f", _FLOAT32, len(values), *values))


def flags(values: Sequence[bool]) -> Value:
    """An array of true and false."""
    return Value(ARRAY, struct.pack(f"<IQ{len(values)}?", _BOOL, len(values), *values))


def _string(value: str) -> bytes:
    data = value.encode("utf-8")
    return struct.pack("<Q", len(data)) + data
