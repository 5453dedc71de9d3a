import importlib.util

import pytest

from dg_lsp.errors import ModelDownloadError, ModelRuntimeError
from dg_lsp.models.build_runtime import RuntimeSource

from .conftest import GEMMA4, VERSION


@pytest.fixture
def unpack(tmp_path):
    """Unpacks what is given; returns llama.cpp's folder. `unpack.looks` is what was told meanwhile."""
    looks = []

    def call(given, *, whole=False, version=VERSION):
        folder = tmp_path / "work"
        folder.mkdir()
        return RuntimeSource(version, given).unpack(
            folder, lambda what, share: looks.append((what, share)), whole=whole
        )

    call.looks = looks
    return call


@pytest.mark.parametrize("by_folder", [False, True])
def test_a_packed_one_is_unpacked_as_far_as_one_file_needs_it(unpack, sdists, by_folder):
    path = sdists.packed()
    inside = unpack(path.parent if by_folder else path)
    assert (inside / "src/models/gemma4.cpp").read_text() == GEMMA4
    assert (inside / "src/llama.cpp").exists()
    assert not (inside / "CMakeLists.txt").exists()
    assert not (inside / "models").exists()


def test_all_that_is_compiled_is_unpacked_where_all_is_built(unpack, sdists):
    inside = unpack(sdists.packed(), whole=True)
    assert (inside / "CMakeLists.txt").exists()
    assert (inside / "src/models/gemma4.cpp").exists()
    assert not (inside / "models").exists()


def test_an_unpacked_one_is_used_where_it_lies(unpack, sdists, tmp_path):
    root = sdists.unpacked()
    assert unpack(root) == root / "vendor/llama.cpp"
    assert not list((tmp_path / "work").iterdir())


@pytest.mark.parametrize("form", ["packed", "unpacked"])
def test_another_versions_source_is_refused(unpack, sdists, form):
    with pytest.raises(ModelRuntimeError, match=r"is llama-cpp-python 0.3.35, but 0.3.36 is installed"):
        unpack(getattr(sdists, form)(version="0.3.35"))


def test_a_damaged_archive_is_told(unpack, sdists):
    path = sdists.packed()
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(ModelRuntimeError, match="is damaged: fetch it again"):
        unpack(path, whole=True)


def test_something_else_is_told(unpack, sdists, tmp_path):
    (tmp_path / "text").write_text("no archive")
    with pytest.raises(ModelRuntimeError, match="is damaged"):
        unpack(tmp_path / "text")
    with pytest.raises(ModelRuntimeError, match=r"holds no llama_cpp_python-0.3.36.tar.gz: .*pip download"):
        RuntimeSource(VERSION, sdists.folder).unpack(tmp_path / "work", print, whole=False)


def test_pip_fetches_it_with_its_own_settings(unpack, sdists, monkeypatch):
    sdists.packed()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(sdists.folder))
    inside = unpack(None)
    assert (inside / "src/models/gemma4.cpp").read_text() == GEMMA4
    assert unpack.looks[0] == ("fetching the source", None)


def test_what_pip_cannot_find_is_told_with_what_it_says(unpack, tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(ModelDownloadError, match=r"--from FILE; pip says: No matching distribution found"):
        unpack(None)


def test_pips_progress_is_passed_on(unpack, monkeypatch):
    from dg_lsp.models import build_runtime

    monkeypatch.setattr(build_runtime, "_lines", lambda _command: iter(["Progress 10 of 40", "ERROR: broke"]))
    with pytest.raises(ModelDownloadError, match="pip says: broke"):
        unpack(None)
    assert ("fetching the source", 0.25) in unpack.looks


def test_a_python_without_pip_says_so(unpack, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(ModelDownloadError, match="ensurepip"):
        unpack(None)
