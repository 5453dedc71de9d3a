"""GGUF files, compared with the package of llama.cpp's own tools."""

import resource
import struct

import gguf
import numpy as np
import pytest

from dg_lsp import gguf as v
from dg_lsp.errors import ModelError
from dg_lsp.gguf import TENSOR_TYPES, copied, read_header, vector, write_gguf

VALUES = {
    "general.architecture": v.text("größe"),
    "a.number": v.uint32(7),
    "a.float": v.float32(0.5),
    "a.flag": v.flag(True),
    "a.texts": v.texts(["", "▁é", "c"]),
    "a.numbers": v.int32s([1, -2]),
    "a.floats": v.float32s([0.25]),
    "a.flags": v.flags([True, False]),
}


def write(path, tensors, values=VALUES):
    with path.open("wb") as file:
        write_gguf(file, values, tensors)
    return path


@pytest.fixture
def small(tmp_path):
    """Two tensors whose sizes are not multiples of the alignment."""
    ones = np.arange(15, dtype=np.float32).reshape(5, 3)
    return write(tmp_path / "small.gguf", [vector("first", ones), vector("second", ones[0])])


def test_number_formats_are_ggmls():
    sizes = {int(kind): size for kind, size in gguf.GGML_QUANT_SIZES.items()}
    for number, kind in TENSOR_TYPES.items():
        if kind.name != "Q2_0":  # the package does not know it yet
            assert (kind.block_weights, kind.block_bytes) == sizes[number]
            assert gguf.GGMLQuantizationType(number).name == kind.name


@pytest.mark.parametrize("alignment", [32, 256])
def test_written_file_reads_the_same_with_the_package(small, tmp_path, alignment):
    values = VALUES | {"general.alignment": v.uint32(alignment)}
    tensors = read_header(small).tensors
    path = write(tmp_path / "other.gguf", [copied(tensor) for tensor in tensors.values()], values)
    header, reference = read_header(path), gguf.GGUFReader(path)
    for key, value in values.items():
        assert header.values[key].read() == reference.get_field(key).contents() == value.read()
    assert [tensor.name for tensor in reference.tensors] == ["first", "second"]
    assert reference.tensors[0].data.tolist() == np.arange(15).reshape(5, 3).tolist()
    assert header.rows("second").view(np.float32).tolist() == [[0, 1, 2]]


def test_file_that_is_cut_short_anywhere_is_refused(small, tmp_path):
    whole, part = small.read_bytes(), tmp_path / "part.gguf"
    end_of_weights = len(whole) - 20  # the last tensor's 12 bytes are padded to 32
    for size in range(4, end_of_weights, 5):
        part.write_bytes(whole[:size])
        with pytest.raises(ModelError, match=r"cut short or damaged: download or export it again"):
            read_header(part)
    part.write_bytes(whole[:end_of_weights])
    assert list(read_header(part).tensors) == ["first", "second"]


@pytest.mark.parametrize(
    ("place", "at", "replacement", "message"),
    [
        (b"", 0, b"GGML", "is not a GGUF file"),
        (b"", 4, b"\x01", "of version 1 or"),
        (b"", 8, b"\xff" * 8, "is cut short or damaged"),
        (b"first", 5, b"\x09", "9 dimensions"),
        (b"first", 9, bytes(8), r"\(5, 0\)"),
        (b"first", 25, b"\xfa", "number format 250"),
        (b"first", 25, b"\x08", "as Q8_0"),
    ],
)
def test_damaged_header_is_refused(small, place, at, replacement, message):
    data = bytearray(small.read_bytes())
    start = data.index(place) + at
    data[start : start + len(replacement)] = replacement
    small.write_bytes(data)
    with pytest.raises(ModelError, match=message):
        read_header(small)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "start",
    [
        struct.pack("<IQQQcIIQ", 3, 1, 1, 1, b"k", v.ARRAY, 0, 3 << 30),
        struct.pack("<IQQQ", 3, 1, 1, 3 << 30),
        struct.pack("<IQQ", 3, 1, 1 << 62),
        struct.pack("<IQQ", 3, 1 << 62, 0),
    ],
    ids=["array", "key", "values", "tensors"],
)
def test_a_sparse_file_that_claims_gigabytes_takes_no_memory(tmp_path, start):
    with (tmp_path / "sparse.gguf").open("wb") as file:
        file.write(b"GGUF" + start)
        file.truncate(4 << 30)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ModelError, match="damaged"):
        read_header(tmp_path / "sparse.gguf")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - most < 200_000  # kB
