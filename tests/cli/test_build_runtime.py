import pytest

from dg_lsp import runtime
from dg_lsp.cli import models
from dg_lsp.errors import ModelRuntimeError
from dg_lsp.models import build_runtime as build
from dg_lsp.runtime import Runtime


@pytest.fixture
def built(tmp_path, monkeypatch):
    """The builder writes down what it was asked for. What the installed library answers is `built.answers`."""

    class Built:
        answers = False
        result = Runtime(tmp_path / "runtime", "overlay", "", "0.3.36", "libllama.so", "00")

    def scripted(wish, prove, look):
        assert prove is models._supports_bidirectional
        look("compiling", 0.5)
        look("testing it", None)
        Built.wishes.append(wish)
        return Built.result

    monkeypatch.setattr(build, "build", scripted)
    monkeypatch.setattr(models, "_supports_bidirectional", lambda _folder: Built.answers)
    Built.wishes = []
    return Built


def test_the_folder_is_printed_and_what_was_built_is_told(dg_lsp, built):
    outcome = dg_lsp("models", "build-runtime")
    assert outcome.code == 0
    assert outcome.out == f"{built.result.folder}\n"
    assert "built and tested in 0 s (one class" in outcome.err


def test_what_keeps_it_from_being_loaded_is_told(dg_lsp, built, monkeypatch):
    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", "/mine")
    outcome = dg_lsp("models", "build-runtime")
    assert outcome.code == 0
    assert "will not be loaded: LLAMA_CPP_LIB_PATH" in outcome.err


def test_options_are_wishes(dg_lsp, built, tmp_path):
    dg_lsp("models", "build-runtime", "--backend", "cuda", "--from", tmp_path)
    dg_lsp("models", "build-runtime", "--whole")
    assert built.wishes == [build.BuildOptions(tmp_path, "cuda", False), build.BuildOptions(None, None, True)]


def test_nothing_is_built_where_the_installed_library_needs_no_change(dg_lsp, built):
    built.answers = True
    outcome = dg_lsp("models", "build-runtime")
    assert (outcome.code, outcome.out, built.wishes) == (0, "", [])
    assert "nothing to build: llama-cpp-python" in outcome.err


def test_nothing_is_built_where_the_source_has_the_change(dg_lsp, built):
    built.result = None
    outcome = dg_lsp("models", "build-runtime")
    assert (outcome.code, outcome.out) == (0, "")
    assert "has the change already" in outcome.err


def test_a_source_that_is_not_there_is_wrong_use(dg_lsp, built):
    outcome = dg_lsp("models", "build-runtime", "--from", "gone")
    assert outcome.code == 2
    assert "gone does not exist" in outcome.err


def test_a_backend_that_is_not_there_is_wrong_use(dg_lsp, tmp_path):
    outcome = dg_lsp("models", "build-runtime", "--backend", "abacus", "--from", tmp_path)
    assert outcome.code == 2
    assert "take cpu, cuda, metal, vulkan, hip, sycl" in outcome.err


def test_a_missing_compiler_is_told_in_one_line(dg_lsp, monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", "gone++")
    monkeypatch.setenv("DG_LSP_RUNTIME", str(tmp_path / "runtime"))
    outcome = dg_lsp("models", "build-runtime", "--whole")
    assert outcome.code == 3
    assert outcome.err.startswith("dg-lsp: gone++ is missing: install a C++ compiler")
    assert outcome.err.count("\n") == 1


def test_the_installed_library_is_asked_in_a_process_of_its_own():
    assert models._supports_bidirectional(None) is False


def test_one_that_cannot_be_loaded_is_told_with_the_reason(tmp_path):
    here = runtime.installed_library()
    (tmp_path / runtime.library_name()).write_text("no library")
    Runtime(tmp_path, "overlay", "", here.version, str(here.library), here.digest()).write()
    with pytest.raises(ModelRuntimeError, match=r"the changed llama.cpp does not run: .*libllama"):
        models._supports_bidirectional(tmp_path)
