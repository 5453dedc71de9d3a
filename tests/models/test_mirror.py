"""A folder stands for the hub, in whatever way the files came into it."""

import hashlib
import shutil

import pytest

from dg_lsp.errors import ModelDownloadError
from dg_lsp.models.download import Fetch, Mirror, fetched_path
from dg_lsp.models.presets import LLADA, Preset

WEIGHTS = b"GGUF" + bytes(range(256)) * 40
TINY = Preset(
    name="tiny",
    repository="somebody/Tiny-GGUF",
    patterns=("Tiny.Q4_K_M.gguf",),
    quantization="Q4_K_M",
    size=len(WEIGHTS),
    sha256=hashlib.sha256(WEIGHTS).hexdigest(),
    licence="MIT",
    family=LLADA,
    note="for tests",
    sources=("here",),
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("DG_LSP_DATA_DIR", str(tmp_path / "data"))
    path = tmp_path / "stick"
    path.mkdir()
    return path


def put(folder, content=WEIGHTS):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "Tiny.Q4_K_M.gguf").write_bytes(content)


def fetch(folder, look=lambda *_: None):
    return Fetch(TINY, Mirror(folder, TINY.repository, TINY.revision)).run(look)


@pytest.mark.parametrize(
    "place",
    [
        pytest.param("somebody/Tiny-GGUF", id="a copy of the hub"),
        pytest.param("models--somebody--Tiny-GGUF/snapshots/main", id="a version by its name"),
        pytest.param("Tiny-GGUF", id="a clone"),
        pytest.param(".", id="just the files"),
    ],
)
def test_the_file_is_found_and_checked(folder, place):
    put(folder / place)
    path = fetch(folder)
    assert path.read_bytes() == WEIGHTS
    assert fetched_path(TINY) == path
    assert fetch(folder) == path


def test_the_cache_of_huggingface_hub_is_one(folder):
    cache = folder / "models--somebody--Tiny-GGUF"
    (cache / "refs").mkdir(parents=True)
    (cache / "refs/main").write_text("abc\n")
    put(cache / "snapshots/abc")
    put(cache / "snapshots/old", b"GGUF of old")
    assert fetch(folder).read_bytes() == WEIGHTS


def test_a_copy_goes_on_where_it_was(folder):
    put(folder)

    def leave(*_):
        raise KeyboardInterrupt

    part = TINY.folder / f".Tiny.Q4_K_M.gguf.{TINY.sha256[:12]}.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(WEIGHTS[:3000])
    with pytest.raises(KeyboardInterrupt):
        fetch(folder, leave)
    seen = []
    fetch(folder, lambda _, done, __: seen.append(done))
    assert seen[0] == 3000
    assert seen[-1] == 2 * len(WEIGHTS)


def test_another_file_under_the_name_is_refused(folder):
    put(folder, WEIGHTS[:-1] + b"!")
    with pytest.raises(ModelDownloadError, match="checksum differs"):
        fetch(folder)
    assert fetched_path(TINY) is None


def test_a_folder_without_the_file_names_what_is_there(folder):
    (folder / "Other.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelDownloadError, match=r"no file Tiny.Q4_K_M.gguf: .*it has Other.gguf"):
        fetch(folder)
    shutil.rmtree(folder)
    with pytest.raises(ModelDownloadError, match="it has no GGUF at all"):
        fetch(folder)


def test_without_a_checksum_a_file_that_is_no_gguf_is_refused(folder):
    import dataclasses

    put(folder, b"<html>not here</html>")
    unknown = dataclasses.replace(TINY, sha256="")
    with pytest.raises(ModelDownloadError, match="not what was expected"):
        Fetch(unknown, Mirror(folder, TINY.repository, TINY.revision)).run()
