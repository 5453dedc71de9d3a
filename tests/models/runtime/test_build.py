import ctypes
import os
import sys

import pytest

from dg_lsp.errors import ModelRuntimeError, UsageError
from dg_lsp.models import build_runtime as builder
from dg_lsp.models.build_runtime import BuildOptions, Patch, build
from dg_lsp.runtime import InstalledLibrary, read_runtime

from .conftest import CHANGED_LINE, GEMMA4

pytestmark = pytest.mark.skipif(sys.platform in ("darwin", "win32"), reason="one class is replaced on ELF systems only")
SWA_ONLY, ALL = 1, 2


def asks(folder):
    """The answer of the library in this folder."""
    return ctypes.CDLL(str(folder / "libllama.so")).non_causal_type()


def good(folder):
    return asks(folder) == ALL


def test_the_changed_class_stands_in_front_of_the_installed_library(here, sdists, stub_library):
    looks = []
    runtime = build(BuildOptions(sdists.packed()), good, lambda what, share: looks.append((what, share)))
    assert asks(stub_library.parent) == SWA_ONLY
    assert asks(here) == ALL
    assert runtime == read_runtime(here)
    assert (runtime.kind, runtime.backend, runtime.folder) == ("overlay", "", here)
    assert runtime.misfit(InstalledLibrary("0.3.36", stub_library)) == ""
    assert sorted(path.name for path in here.iterdir()) == ["build.log", "libllama.so", "runtime.json"]
    assert list(here.parent.iterdir()) == [here]
    assert looks == [("unpacking", None), ("compiling", None), ("testing it", None)]


def test_only_that_class_is_replaced(here, sdists, stub_library):
    def address(library, name):
        return ctypes.addressof(ctypes.c_char.in_dll(library, name))

    build(BuildOptions(sdists.packed()), good)
    front = ctypes.CDLL(str(here / "libllama.so"))
    behind = ctypes.CDLL(str(stub_library.with_name("libstub.so.0")))
    table_of_gemma4, type_of_all = "_ZTV18llama_model_gemma4", "_ZTI11llama_model"
    assert address(front, table_of_gemma4) != address(behind, table_of_gemma4)
    assert address(front, type_of_all) == address(behind, type_of_all)


def test_a_second_build_replaces_the_first(here, sdists):
    build(BuildOptions(sdists.packed()), good)
    (here / "old").write_text("")
    build(BuildOptions(sdists.packed()), good)
    assert not (here / "old").exists()
    assert list(here.parent.iterdir()) == [here]


def test_an_unpacked_source_is_left_as_it_was(here, sdists):
    root = sdists.unpacked()
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    build(BuildOptions(root), good)
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


def test_a_failed_compilation_is_told_with_its_first_error_and_keeps_what_was_there(here, sdists):
    build(BuildOptions(sdists.packed()), good)
    broken = GEMMA4.replace(CHANGED_LINE, f"{CHANGED_LINE}\n    nonsense();")
    with pytest.raises(
        ModelRuntimeError, match=r"c\+\+ failed: .*nonsense.*; all it said is in .*runtime.log"
    ) as raised:
        build(BuildOptions(sdists.packed(gemma4=broken)), good)
    assert "\n" not in str(raised.value)
    assert asks(here) == ALL
    log = here.with_name("runtime.log")
    assert "nonsense" in log.read_text()
    assert sorted(here.parent.iterdir()) == [here, log]


def test_one_that_does_not_compute_otherwise_is_not_kept(here, sdists):
    with pytest.raises(ModelRuntimeError, match="run dg-lsp models build-runtime --whole"):
        build(BuildOptions(sdists.packed()), lambda _folder: False)
    assert not here.exists()


def test_there_is_nothing_to_build_where_the_source_says_it_already(here, sdists):
    changed = Patch.read().apply(GEMMA4, "0.3.36")
    assert build(BuildOptions(sdists.packed(gemma4=changed)), good) is None
    assert not here.exists()
    assert not list(here.parent.iterdir())


@pytest.mark.parametrize("is_whole", [False, True])
def test_a_source_without_the_class_is_told(here, sdists, is_whole, monkeypatch):
    monkeypatch.setattr(builder, "check_tools", lambda _backend: None)
    root = sdists.unpacked()
    (root / "vendor/llama.cpp/src/models/gemma4.cpp").unlink()
    with pytest.raises(ModelRuntimeError, match=r"has no src/models/gemma4.cpp: update dg-lsp"):
        build(BuildOptions(root, is_whole=is_whole), good)


def test_a_missing_compiler_is_named_before_anything_is_fetched(here, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(ModelRuntimeError, match=r"g\+\+ .*is missing: .*apt-get install g\+\+"):
        build(BuildOptions(), good)
    monkeypatch.setenv("CXX", "special++")
    with pytest.raises(ModelRuntimeError, match=r"special\+\+ is missing"):
        build(BuildOptions(), good)


def test_a_folder_with_something_else_in_it_is_not_replaced(here, sdists, monkeypatch):
    here.mkdir(parents=True)
    (here / "thesis.txt").write_text("years of work")
    with pytest.raises(UsageError, match="holds something else"):
        build(BuildOptions(sdists.packed()), good)
    assert (here / "thesis.txt").exists()
    monkeypatch.setenv("DG_LSP_RUNTIME", str(here / "thesis.txt"))
    with pytest.raises(UsageError, match="holds something else"):
        build(BuildOptions(sdists.packed()), good)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="folders of Windows")
def test_a_folder_that_cannot_be_made_is_told(here, sdists, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DG_LSP_RUNTIME", str(tmp_path / "file" / "runtime"))
    with pytest.raises(ModelRuntimeError, match="set DG_LSP_RUNTIME to another folder"):
        build(BuildOptions(sdists.packed()), good)


def test_without_llama_cpp_python_there_is_nothing_to_change(here, monkeypatch):
    monkeypatch.setattr(builder, "installed_library", lambda: None)
    with pytest.raises(ModelRuntimeError, match="not installed"):
        build(BuildOptions(), good)
