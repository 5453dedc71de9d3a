import ctypes
import os
import shutil
import sys

import pytest

from dg_lsp.errors import ModelRuntimeError, UsageError
from dg_lsp.models import build_runtime
from dg_lsp.models.build_runtime import BuildOptions, build, check_tools, failure_reason
from dg_lsp.runtime import read_runtime

from .conftest import always

SCRIPTED = """#!/bin/sh
echo "$@" >> {calls}
if [ "$1" = --build ]; then
  mkdir -p "$2/bin" && echo library > "$2/bin/libllama.so.0.5.0" && ln -s libllama.so.0.5.0 "$2/bin/libllama.so"
  grep -q LLAMA_NON_CAUSAL_TYPE_ALL\\; "$2/../src/models/gemma4.cpp" && echo patched > "$2/bin/libggml.so"
  echo "[ 50%] Building"; echo "[3/4] Building"
fi
"""


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """The only programs there are: a compiler and a CMake that writes down how it is called, and those added."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sh", "mkdir", "ln", "grep", "cat"):
        (folder / name).symlink_to(shutil.which(name))
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    monkeypatch.delenv("CXX", raising=False)

    def add(name, text="#!/bin/sh\n"):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)

    add.calls = tmp_path / "calls"
    add("c++")
    add("cmake", SCRIPTED.format(calls=add.calls))
    return add


@pytest.mark.skipif(sys.platform in ("darwin", "win32") or not shutil.which("cmake"), failure_reason="no CMake here")
@pytest.mark.parametrize("form", ["packed", "unpacked"])
def test_all_of_it_is_built_and_needs_nothing_of_the_installed_one(here, sdists, form):
    given = getattr(sdists, form)()
    runtime = build(BuildOptions(given, is_whole=True), lambda folder: (folder / "libllama.so").exists())
    assert (runtime.kind, runtime.backend) == ("whole", "cpu")
    assert ctypes.CDLL(str(here / "libllama.so")).non_causal_type() == 2
    assert (here / "libllama.so.0").is_symlink()
    assert runtime == read_runtime(here)
    if form == "unpacked":
        assert not (given / "vendor/llama.cpp/build-dg-lsp").exists()
        assert "SWA_ONLY;" in (given / "vendor/llama.cpp/src/models/gemma4.cpp").read_text()


def test_cmake_is_told_the_backend_and_a_persons_own_options(here, sdists, tools, monkeypatch):
    tools("nvcc")
    tools("ninja")
    monkeypatch.setenv("CMAKE_ARGS", "-DCMAKE_CUDA_ARCHITECTURES=90 -DGGML_AVX512='ON'")
    monkeypatch.setenv("CMAKE_BUILD_PARALLEL_LEVEL", "3")
    looks = []
    build(BuildOptions(sdists.packed(), backend="cuda"), always, lambda what, share: looks.append((what, share)))
    configure, compile_ = tools.calls.read_text().splitlines()
    for option in ("-G Ninja", "-DGGML_CUDA=ON", "-DGGML_METAL=OFF", "-DGGML_VULKAN=OFF", "-DBUILD_SHARED_LIBS=ON"):
        assert f" {option} " in configure
    assert configure.endswith("-DCMAKE_CUDA_ARCHITECTURES=90 -DGGML_AVX512=ON")
    assert compile_.endswith("--config Release --target llama --parallel 3")
    assert ("compiling llama.cpp", 0.5) in looks
    assert ("compiling llama.cpp", 0.75) in looks
    assert (here / "libggml.so").read_text() == "patched\n"
    assert (here / "libllama.so").readlink().name == "libllama.so.0.5.0"
    assert read_runtime(here).backend == "cuda"


@pytest.mark.parametrize(
    ("backend", "message"),
    [
        ("cuda", r"nvcc.* is missing: install the CUDA toolkit"),
        ("vulkan", r"glslc is missing: install the Vulkan SDK"),
        ("hip", r"hipcc.* is missing: install ROCm"),
        ("sycl", r"icpx is missing: .*oneAPI"),
    ],
)
def test_a_missing_tool_is_named_with_how_to_get_it(tools, backend, message, monkeypatch):
    named = {
        name: ((tool[0],), advice) for name, (tool, advice) in build_runtime._TOOLS.items()
    }  # not those of /usr/local
    monkeypatch.setattr(build_runtime, "_TOOLS", named)
    with pytest.raises(ModelRuntimeError, match=message):
        check_tools(backend)


def test_a_missing_cmake_is_named(tools, tmp_path):
    (tmp_path / "bin" / "cmake").unlink()
    with pytest.raises(ModelRuntimeError, match=r"cmake is missing: run .* -m pip install cmake"):
        check_tools("cpu")


@pytest.mark.parametrize("backend", ["abacus", *(["metal"] if sys.platform != "darwin" else [])])
def test_a_backend_that_is_not_there_is_refused(tools, backend):
    with pytest.raises(UsageError):
        check_tools(backend)


def test_a_failed_build_keeps_what_was_there(here, sdists, tools):
    build(BuildOptions(sdists.packed(), backend="cpu"), always)
    tools("cmake", "#!/bin/sh\necho 'CMake Error at x.cmake:3 (find_package):'\necho '  no such package'\nexit 1\n")
    with pytest.raises(ModelRuntimeError, match=r"cmake failed: .*x.cmake:3 \(find_package\): no such package; all"):
        build(BuildOptions(sdists.packed(), backend="cpu"), always)
    assert read_runtime(here).kind == "whole"


def test_a_build_that_makes_no_library_is_told(here, sdists, tools):
    tools("cmake")
    with pytest.raises(ModelRuntimeError, match="made no library"):
        build(BuildOptions(sdists.packed(), backend="cpu"), always)
    assert not here.exists()


@pytest.mark.parametrize(
    ("said", "found"),
    [
        (
            ["-- Warning: x not found", "a.cpp:3: error: no such type", "b.cpp:4: error: other"],
            "a.cpp:3: error: no such type",
        ),
        (["nothing of note", "", "Killed", ""], "Killed"),
        ([], "it said nothing"),
    ],
)
def test_the_line_that_explains_a_failure_is_found(said, found):
    assert failure_reason(said) == found


def test_where_one_class_cannot_be_replaced_all_of_it_is_built(monkeypatch):
    assert BuildOptions().whole_backend == "" or os.name == "nt"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert BuildOptions().whole_backend == "metal"
    monkeypatch.setattr(sys, "platform", "win32")
    assert BuildOptions().whole_backend == "cpu"
    assert BuildOptions(backend="vulkan").whole_backend == "vulkan"
