import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dg_lsp import runtime
from dg_lsp.runtime import InstalledLibrary, Runtime, find_runtime, installed_library, read_runtime, runtime_folder


@pytest.fixture
def here(tmp_path, monkeypatch):
    """What is installed: a library with nothing in it."""
    library = tmp_path / "llama_cpp" / "lib" / runtime.library_name()
    library.parent.mkdir(parents=True)
    library.write_bytes(b"stock")
    here = InstalledLibrary("0.3.36", library)
    monkeypatch.setattr(runtime, "installed_library", lambda: here)
    return here


@pytest.fixture
def made(here, tmp_path):
    """An overlay for it."""
    folder = tmp_path / "runtime"
    folder.mkdir()
    made = Runtime(folder, "overlay", "", here.version, str(here.library), here.digest())
    made.library.write_bytes(b"changed")
    made.write()
    return made


def found(folder, **more):
    return find_runtime({"DG_LSP_RUNTIME": str(folder), **more})


def test_what_is_installed_here_is_found():
    here = installed_library()
    assert here.version.startswith("0.3.")
    assert here.library.is_file()
    assert len(here.digest()) == 64


def test_without_llama_cpp_python_nothing_is_found(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    assert installed_library() is None
    assert find_runtime({}) == runtime.RuntimeSearch(None)


def test_a_runtime_made_for_what_is_installed_is_found(made):
    assert found(made.folder) == runtime.RuntimeSearch(made)
    assert read_runtime(made.folder) == made


def test_one_for_another_version_is_refused(made, here):
    replace(made, version="0.3.35").write()
    assert found(made.folder).runtime is None
    note = found(made.folder).note
    assert "made for llama-cpp-python 0.3.35, installed is 0.3.36; run dg-lsp models build-runtime again" in note


def test_one_in_front_of_another_build_is_refused(made, here):
    here.library.write_bytes(b"the same version, built for a GPU")
    assert found(made.folder).runtime is None
    assert "another build of llama-cpp-python 0.3.36" in found(made.folder).note


def test_one_in_front_of_a_library_elsewhere_is_refused(made):
    replace(made, installed_library="/elsewhere/libllama.so").write()
    assert "another build" in found(made.folder).note


def test_a_whole_one_fits_any_build_of_its_version(made, here):
    replace(made, kind="whole", backend="cuda").write()
    here.library.write_bytes(b"the same version, built for a GPU")
    assert found(made.folder).runtime.backend == "cuda"
    replace(made, kind="whole", version="0.4.0").write()
    assert found(made.folder).runtime is None


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"kind": 1}'])
def test_a_damaged_record_is_told(made, text):
    (made.folder / "runtime.json").write_text(text)
    assert found(made.folder).runtime is None
    assert "is damaged; run dg-lsp models build-runtime again" in found(made.folder).note


@pytest.mark.parametrize("change", [{"kind": "half"}, {"version": 3}])
def test_a_record_of_something_else_is_damaged(made, change):
    path = made.folder / "runtime.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert read_runtime(made.folder) is None


def test_a_record_without_its_library_is_damaged(made):
    made.library.unlink()
    assert "damaged" in found(made.folder).note


def test_none_is_found_without_a_word_where_none_was_asked_for(here, monkeypatch, tmp_path):
    monkeypatch.setattr(runtime, "runtime_folder", lambda _environment: tmp_path / "nowhere")
    assert find_runtime({}) == runtime.RuntimeSearch(None)


def test_none_in_the_folder_that_was_named_is_told(here, tmp_path):
    assert "there is none" in found(tmp_path / "nowhere").note


def test_the_stock_library_can_be_asked_for(made):
    assert found("stock") == runtime.RuntimeSearch(None, "DG_LSP_RUNTIME is set to stock")


def test_llama_cpp_pythons_own_variable_wins(made):
    assert found(made.folder, LLAMA_CPP_LIB_PATH="/mine").runtime is None
    assert "LLAMA_CPP_LIB_PATH" in found(made.folder, LLAMA_CPP_LIB_PATH="/mine").note


def test_a_virtual_environment_keeps_its_own(monkeypatch):
    monkeypatch.setattr(sys, "prefix", "/home/ada/.venv")
    assert runtime_folder({}) == Path("/home/ada/.venv/share/dg-lsp/runtime")


def test_elsewhere_each_python_has_one_in_the_users_folder(monkeypatch):
    monkeypatch.setenv("DG_LSP_DATA_DIR", "/data")
    folders = set()
    for prefix in ("/usr", "/opt/conda"):
        monkeypatch.setattr(sys, "prefix", prefix)
        monkeypatch.setattr(sys, "base_prefix", prefix)
        folders.add(runtime_folder({}))
    assert {folder.parent for folder in folders} == {Path("/data/runtimes")}
    assert len(folders) == 2


def test_another_folder_can_be_named():
    assert runtime_folder({"DG_LSP_RUNTIME": "~/mine"}) == Path("~/mine").expanduser()
    assert runtime_folder({"DG_LSP_RUNTIME": "stock"}) == runtime_folder({})
