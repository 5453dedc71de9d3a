"""Two files that appear whole or not at all, written with little memory."""

import hashlib
import shutil
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest

from dg_lsp import gguf as v
from dg_lsp.errors import InputFileError, ModelBrokenError, ModelUnsupportedError, UsageError
from dg_lsp.gguf import BLOCK_BYTES, F16, Tensor, copied, read_header, vector, write_gguf
from dg_lsp.models import convert
from dg_lsp.models.convert import ModelParts, check_target, side_path, convert_checkpoint, write_model


@pytest.fixture
def parts(tiny_checkpoint):
    return convert_checkpoint(tiny_checkpoint)


def test_the_main_file_names_its_side_file(parts, tmp_path):
    seen = []
    write_model(parts, tmp_path / "a.gguf", seen.append)
    values = read_header(tmp_path / "a.gguf").values
    side = tmp_path / "a.selfcond.gguf"
    assert values["dg.self_conditioning"].read() == side.name
    assert values["dg.self_conditioning.sha256"].read() == hashlib.sha256(side.read_bytes()).hexdigest()
    assert sum(seen) == parts.size
    assert {path.name for path in tmp_path.iterdir()} == {"a.gguf", side.name}
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o644}


def test_a_failure_leaves_nothing_behind(parts, tmp_path):
    broken = Tensor("last", (10, 10), F16, lambda: (b"too short",))
    with pytest.raises(ModelBrokenError, match="tensor last is cut short"):
        write_model(ModelParts(parts.values, (*parts.main, broken), parts.side), tmp_path / "a.gguf")
    assert not list(tmp_path.iterdir())


def test_an_interruption_leaves_nothing_behind(parts, tmp_path):
    seen = []

    def look(size):
        seen.append(size)
        if len(seen) == 20:
            assert len(list(tmp_path.iterdir())) == 2
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_model(parts, tmp_path / "a.gguf", look)
    assert not list(tmp_path.iterdir())


def test_a_press_makes_the_main_file_smaller(parts, tmp_path):
    def press(written, smaller):
        assert read_header(written).values["dg.self_conditioning"].read() == "a.selfcond.gguf"
        shutil.copy(written, smaller)
        with smaller.open("ab") as file:
            file.write(b"pressed")

    write_model(parts, tmp_path / "a.gguf", quantize=press)
    assert (tmp_path / "a.gguf").read_bytes().endswith(b"pressed")

    def refuse(written, smaller):
        raise ModelUnsupportedError("no")

    with pytest.raises(ModelUnsupportedError):
        write_model(parts, tmp_path / "b.gguf", quantize=refuse)
    assert {path.name for path in tmp_path.iterdir()} == {"a.gguf", "a.selfcond.gguf"}


def test_a_full_disk_says_so(parts, tmp_path, monkeypatch):
    def write(file, *_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(convert, "write_gguf", write)
    with pytest.raises(InputFileError, match=r"a\.gguf cannot be written: No space left on device; make room"):
        write_model(parts, tmp_path / "a.gguf")
    assert not list(tmp_path.iterdir())


def test_room_is_looked_at_first(tmp_path, monkeypatch):
    monkeypatch.setattr(convert.shutil, "disk_usage", lambda _: SimpleNamespace(free=10_000_000_000))
    check_target(tmp_path / "a.gguf", 9_900_000_000)
    with pytest.raises(InputFileError, match=r"needs 10\.0 GB free and has 10\.0: make room there"):
        check_target(tmp_path / "a.gguf", 9_950_000_000)


def test_nothing_is_written_over(tmp_path):
    for name in ("a.gguf", "b.selfcond.gguf"):
        (tmp_path / name).touch()
    for name in ("a.gguf", "b.gguf"):
        with pytest.raises(UsageError, match="is there already: remove it, or pass another name with -o"):
            check_target(tmp_path / name, 1)
    for name in ("c", "c.selfcond.gguf", "c.bin"):
        with pytest.raises(UsageError, match=r"let it end in \.gguf"):
            check_target(tmp_path / name, 1)
    with pytest.raises(InputFileError, match="is no folder"):
        check_target(tmp_path / "none" / "c.gguf", 1)


def test_memory_is_a_few_blocks_whatever_the_size(tmp_path):
    size = 16 * BLOCK_BYTES
    tensor = Tensor("big", (size // 2048, 1024), F16, lambda: (bytes(BLOCK_BYTES) for _ in range(16)))
    with (tmp_path / "source.gguf").open("wb") as file:
        write_gguf(file, {}, [tensor])
    header = read_header(tmp_path / "source.gguf")
    whole = ModelParts(
        {"general.name": v.text("x")},
        (copied(header.path, header.tensors["big"]),),
        (vector("n", np.ones(4, np.float32)),),
    )
    tracemalloc.start()
    write_model(whole, tmp_path / "a.gguf")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert side_path(tmp_path / "a.gguf").is_file()
    assert peak < 3 * BLOCK_BYTES
