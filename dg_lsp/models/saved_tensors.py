"""Reads safetensors files: the tensors of a checkpoint folder by name, and their elements.

A safetensors file is a JSON header and plain numbers; reading it here makes torch unnecessary for the conversion.
"""

import json
import stat
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dg_lsp.errors import InputFileError, ModelBrokenError, ModelUnsupportedError, escaped
from dg_lsp.gguf import BF16, F16, F32, TensorType, map_file_errors

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
KINDS: dict[str, TensorType] = {"F32": F32, "F16": F16, "BF16": BF16}
_MAX_HEADER = 100_000_000
"""Bytes; the limit of the format."""
_MAX_TEXT = 100_000_000
"""Bytes of a text file; the tokenizers of large models have 35 million."""
_MAX_SHOWN = 255
"""Characters of a name in an error: no file has a longer one."""
DAMAGE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError, struct.error)
"""What values of another type or range raise while they are read or converted."""


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """One tensor of a checkpoint."""

    path: Path
    name: str
    shape: tuple[int, ...]
    kind: TensorType
    start: int  # offset in bytes from the start of the file

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    def blocks(self, length: int) -> Iterator[npt.NDArray[Any]]:
        """The flat elements, `length` at a time: float32, float16, or the 16 bits of BF16 as uint16.

        They are read, not mapped: memory stays small, and a failing disk raises an error instead of a signal.
        """
        stored_type = np.dtype({F32: "<f4", F16: "<f2", BF16: "<u2"}[self.kind])
        with map_file_errors(self.path), self.path.open("rb") as file:
            file.seek(self.start)
            for start in range(0, self.size, length):
                yield np.fromfile(file, stored_type, min(length, self.size - start))


def to_float32(raw: npt.NDArray[Any], kind: TensorType) -> npt.NDArray[np.float32]:
    """Elements from `SavedTensor.blocks`, in float32."""
    return (raw.astype(np.uint32) << np.uint32(16)).view(np.float32) if kind is BF16 else raw.astype(np.float32)


def read_checkpoint(folder: Path) -> dict[str, SavedTensor]:
    """The tensors of all safetensors files in a folder, by name. Reads only the headers.

    Raises:
        InputFileError: the folder has no safetensors file, or one of them is missing.
        ModelBrokenError: a file is damaged or cut short.
        ModelUnsupportedError: a number format other than F32, F16 and BF16.
    """
    index = folder / INDEX
    shards = read_json(index).get("weight_map") if index.is_file() else {"": SINGLE}
    if not isinstance(shards, dict) or not all(isinstance(name, str) for name in shards.values()):
        raise ModelBrokenError(f"{index} is damaged: download it again")
    names = sorted(set(shards.values()))
    if pickles := [name for name in names if not name.endswith(".safetensors")]:  # transformers would unpickle it
        problem = f"names {escaped(pickles[0][:_MAX_SHOWN])}, which is no safetensors file"
        raise ModelBrokenError(f"{index} {problem}: download it again")
    with map_file_errors(folder):
        present = {path.name for path in folder.iterdir()}
    if missing := [name for name in names if name not in present]:  # also of a file in another folder
        shown = escaped(missing[0][:_MAX_SHOWN])
        raise InputFileError(f"{folder} lacks {shown} ({len(missing)} of {len(names)} files): download it again")
    tensors: dict[str, SavedTensor] = {}
    for name in names:
        tensors |= _tensors(folder / name)
    return tensors


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file of a checkpoint.

    Raises:
        InputFileError: the file is missing, unreadable, or not a JSON object.
    """
    try:
        content = json.loads(read_text(path))
    except OSError as error:
        raise InputFileError(f"{path} cannot be read ({error.strerror}): name the folder of a checkpoint") from error
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise InputFileError(f"{path} is damaged: download it again")
    return content


def read_text(path: Path) -> str:
    """The text of a file of a checkpoint. Raises OSError, or ValueError where it is no text, no file, or too long."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_TEXT:  # a pipe would block
        raise ValueError(f"{path.name} is no file of at most {_MAX_TEXT} bytes")
    return path.read_text(encoding="utf-8")


def _tensors(path: Path) -> dict[str, SavedTensor]:
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > _MAX_HEADER:
                raise ValueError(length)
            entries: Mapping[str, Any] = json.loads(file.read(length))
            size = file.seek(0, 2)
        tensors = [_tensor(path, 8 + length, name, entry) for name, entry in entries.items() if name != "__metadata__"]
    except OSError as error:
        raise InputFileError(f"{path} cannot be read ({error.strerror}): check its permissions") from error
    except DAMAGE as error:
        raise ModelBrokenError(f"{path} is not a safetensors file, or is damaged: download it again") from error
    if any(t.start + t.size * t.kind.block_bytes > size for t in tensors):
        raise ModelBrokenError(f"{path} is cut short: download it again")
    return {tensor.name: tensor for tensor in tensors}


def _tensor(path: Path, data: int, name: str, entry: Mapping[str, Any]) -> SavedTensor:
    begin, end = entry["data_offsets"]
    shape = tuple(int(length) for length in entry["shape"])
    kind = KINDS.get(entry["dtype"])
    if kind is None:
        raise ModelUnsupportedError(
            f"{path.parent}: tensor {name} is of number format {entry['dtype']}: use the checkpoint in BF16, F16 or F32"
        )
    if end - begin != prod(shape) * kind.block_bytes or begin < 0:
        raise ValueError(name)
    return SavedTensor(path, name, shape, kind, data + begin)
