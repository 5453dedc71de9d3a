"""GGUF files read and written, against the package that llama.cpp's own tools use."""

import gguf
import numpy as np
import pytest

from dg_lsp import gguf as v
from dg_lsp.errors import ModelBrokenError, ModelError, ModelNotFoundError, ModelUnsupportedError
from dg_lsp.gguf import F32, TENSOR_TYPES, Tensor, copied, read_header, vector, write_gguf
from dg_lsp.models.registry import BUNDLED

MINI = BUNDLED[0].path
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


@pytest.fixture
def small(tmp_path):
    """Two tensors whose sizes are no multiples of the alignment."""
    path = tmp_path / "small.gguf"
    ones = np.arange(15, dtype=np.float32).reshape(5, 3)
    with path.open("wb") as file:
        write_gguf(file, VALUES, [vector("first", ones), vector("second", ones[0])])
    return path


def test_number_formats_are_ggml_s():
    sizes = {int(kind): size for kind, size in gguf.GGML_QUANT_SIZES.items()}
    for number, kind in TENSOR_TYPES.items():
        assert (kind.block_weights, kind.block_bytes) == sizes[number]
        assert gguf.GGMLQuantizationType(number).name == kind.name


def test_the_bundled_model_is_read_as_llama_cpp_s_package_reads_it():
    header, other = read_header(MINI), gguf.GGUFReader(MINI)
    theirs = {name: field.contents() for name, field in other.fields.items() if not name.startswith("GGUF.")}
    assert {key: value.read() for key, value in header.values.items()} == theirs
    for tensor in other.tensors:
        ours = header.tensors[tensor.name]
        assert ours.start == tensor.data_offset
        assert ours.size == tensor.n_bytes
        assert ours.shape == tuple(reversed([int(length) for length in tensor.shape]))
        assert np.array_equal(header.rows(tensor.name).reshape(-1), np.asarray(tensor.data).view(np.uint8).reshape(-1))


def test_what_is_written_is_read_by_both(small):
    header, other = read_header(small), gguf.GGUFReader(small)
    for key, value in VALUES.items():
        assert header.values[key].read() == other.get_field(key).contents() == value.read()
    assert [tensor.name for tensor in other.tensors] == ["first", "second"]
    assert other.tensors[0].data.tolist() == np.arange(15).reshape(5, 3).tolist()
    assert header.rows("second").view(np.float32).tolist() == [[0, 1, 2]]


def test_a_copy_is_the_same_file(tmp_path):
    header, target = read_header(MINI), tmp_path / "copy.gguf"
    seen = []
    with target.open("wb") as file:
        write_gguf(file, header.values, [copied(MINI, tensor) for tensor in header.tensors.values()], seen.append)
    assert target.read_bytes() == MINI.read_bytes()
    assert sum(seen) == sum(tensor.size for tensor in header.tensors.values())


def test_any_file_that_is_cut_short_says_so(small, tmp_path):
    whole, part = small.read_bytes(), tmp_path / "part.gguf"
    end_of_weights = len(whole) - 20  # the last tensor's 12 bytes are padded to 32
    for size in range(4, end_of_weights, 5):
        part.write_bytes(whole[:size])
        with pytest.raises(ModelBrokenError, match=r"cut short: download or export it again"):
            read_header(part)
    part.write_bytes(whole[:end_of_weights])
    assert list(read_header(part).tensors) == ["first", "second"]


@pytest.mark.parametrize(
    ("at", "bytes_", "error", "says"),
    [
        (0, b"GGML", ModelBrokenError, "is not a GGUF file"),
        (4, b"\x01", ModelUnsupportedError, "of version 1"),
        (4, b"\x00\x00\x00\x03", ModelUnsupportedError, "of the other byte order"),
        (8, b"\xff" * 8, ModelBrokenError, "is damaged|is cut short"),
        (16, b"\xff" * 8, ModelBrokenError, "cut short"),
    ],
)
def test_a_damaged_head_is_refused(small, at, bytes_, error, says):
    data = bytearray(small.read_bytes())
    data[at : at + len(bytes_)] = bytes_
    small.write_bytes(data)
    with pytest.raises(error, match=says):
        read_header(small)


def test_a_damaged_tensor_is_refused(small):
    data = small.read_bytes()
    at = data.index(b"first") + 5
    for number, error, says in [(9, ModelBrokenError, "9 dimensions"), (0, ModelBrokenError, "0 dimensions")]:
        small.write_bytes(data[:at] + number.to_bytes(4, "little") + data[at + 4 :])
        with pytest.raises(error, match=says):
            read_header(small)
    at += 4 + 2 * 8
    for number, error, says in [(250, ModelUnsupportedError, "number format 250"), (8, ModelBrokenError, "as Q8_0")]:
        small.write_bytes(data[:at] + number.to_bytes(4, "little") + data[at + 4 :])
        with pytest.raises(error, match=says):
            read_header(small)


def test_a_missing_file_and_a_folder_say_so(tmp_path):
    with pytest.raises(ModelNotFoundError, match="does not exist"):
        read_header(tmp_path / "none.gguf")
    with pytest.raises(ModelError, match="cannot be read"):
        read_header(tmp_path)
    (tmp_path / "empty.gguf").write_bytes(b"")
    with pytest.raises(ModelBrokenError, match="is not a GGUF file"):
        read_header(tmp_path / "empty.gguf")


def test_a_source_that_ends_too_early_is_noticed(tmp_path):
    tensor = Tensor("short", (2, 2), F32, lambda: (b"1234",))
    with (tmp_path / "out.gguf").open("wb") as file, pytest.raises(ModelBrokenError, match="tensor short is cut short"):
        write_gguf(file, {}, [tensor])
