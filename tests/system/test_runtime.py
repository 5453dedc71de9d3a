"""The search for a changed llama.cpp, and its fit to the installed one."""

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dg_lsp import runtime
from dg_lsp.runtime import InstalledLibrary, Runtime, find_runtime, installed_library, runtime_folder


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """An installed library without content."""
    library = tmp_path / "llama_cpp" / "lib" / runtime.OVERLAY_LIBRARY
    library.parent.mkdir(parents=True)
    library.write_bytes(b"stock")
    installed = InstalledLibrary("0.3.36", library)
    monkeypatch.setattr(runtime, "installed_library", lambda: installed)
    return installed


@pytest.fixture
def overlay(installed, tmp_path):
    folder = tmp_path / "runtime"
    folder.mkdir()
    overlay = Runtime(folder, str(installed.library), installed.digest())
    overlay.library.write_bytes(b"changed")
    overlay.write()
    return overlay


def search(folder):
    return find_runtime({"DG_LSP_RUNTIME": str(folder)})


def test_nothing_is_found_without_llama_cpp_python(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    assert installed_library() is None
    assert find_runtime({}) == runtime.RuntimeSearch(None)


def test_a_runtime_for_the_installed_library_is_found_also_through_a_link(overlay, installed, tmp_path, monkeypatch):
    assert search(overlay.folder) == runtime.RuntimeSearch(overlay)
    (tmp_path / "link").symlink_to(installed.library.parent)
    linked = replace(installed, library=tmp_path / "link" / installed.library.name)
    monkeypatch.setattr(runtime, "installed_library", lambda: linked)
    assert search(overlay.folder).runtime == overlay


@pytest.mark.parametrize("text", ["{", "[]", '{"installed_library": 1}', None])
def test_a_damaged_record_or_a_missing_library_is_reported(overlay, text):
    if text is None:
        overlay.library.unlink()
    else:
        (overlay.folder / "runtime.json").write_text(text)
    assert search(overlay.folder).runtime is None
    assert "is damaged; run dg-lsp models build-runtime again" in search(overlay.folder).note


@pytest.mark.parametrize(
    ("environment", "note"),
    [
        ({"DG_LSP_RUNTIME": "/nowhere"}, "contains no runtime"),
        ({"DG_LSP_RUNTIME": "stock"}, "DG_LSP_RUNTIME is set to stock"),
        ({"LLAMA_CPP_LIB_PATH": "/mine"}, "LLAMA_CPP_LIB_PATH selects the library"),
    ],
)
def test_the_users_variables_decide_and_are_reported(overlay, environment, note, monkeypatch):
    result = find_runtime({"DG_LSP_RUNTIME": str(overlay.folder), **environment})
    assert result.runtime is None
    assert note in result.note
    monkeypatch.setattr(runtime, "runtime_folder", lambda _environment: overlay.folder / "nowhere")
    assert find_runtime({}) == runtime.RuntimeSearch(None), "a missing runtime is not reported"


def test_each_python_has_its_folder_for_runtimes(monkeypatch):
    monkeypatch.setattr(sys, "prefix", "/home/ada/.venv")
    assert runtime_folder({}) == Path("/home/ada/.venv/share/dg-lsp/runtime")
    monkeypatch.setenv("DG_LSP_DATA_DIR", "/data")
    folders = set()
    for prefix in ("/usr", "/opt/conda"):
        monkeypatch.setattr(sys, "prefix", prefix)
        monkeypatch.setattr(sys, "base_prefix", prefix)
        folders.add(runtime_folder({}))
    assert {folder.parent for folder in folders} == {Path("/data/runtimes")}
    assert len(folders) == 2
