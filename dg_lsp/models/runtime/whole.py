"""All of llama.cpp, changed and compiled: where an overlay is impossible, or another backend is wanted."""

import os
import re
import shlex
import shutil
import sys
from pathlib import Path

from dg_lsp.errors import ModelRuntimeError, UsageError
from dg_lsp.models.runtime.patch import Patch
from dg_lsp.models.runtime.tools import Look, compiler, find, run

_OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=ON",
    "-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON",
    "-DLLAMA_BUILD_COMMON=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_TOOLS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_SERVER=OFF",
    "-DLLAMA_BUILD_APP=OFF",
)
_SWITCHES = {"cpu": "", "cuda": "GGML_CUDA", "metal": "GGML_METAL", "vulkan": "GGML_VULKAN", "hip": "GGML_HIP"}
_SWITCHES |= {"sycl": "GGML_SYCL"}
BACKENDS = tuple(_SWITCHES)
_TOOLS = {
    "cuda": (("nvcc", "/usr/local/cuda/bin/nvcc"), "install the CUDA toolkit, or put its bin folder on PATH"),
    "vulkan": (("glslc",), "install the Vulkan SDK: on Debian and Ubuntu sudo apt-get install libvulkan-dev glslc"),
    "hip": (("hipcc", "/opt/rocm/bin/hipcc"), "install ROCm with its developer packages"),
    "sycl": (("icpx",), "install Intel's oneAPI and run its setvars.sh first"),
}
_PERCENT = re.compile(r"\[\s*(\d+)%\]")
_COUNT = re.compile(r"\[(\d+)/(\d+)\]")
_LIBRARY = re.compile(r"\.(so(\.\d+)*|dylib|dll)$")


def natural_backend() -> str:
    """What this system computes on where nothing was said."""
    return "metal" if sys.platform == "darwin" else "cpu"


def check_tools(backend: str) -> str:
    """The path of CMake, once everything that the backend's build needs is found.

    Raises:
        UsageError: the backend does not exist here.
        ModelRuntimeError: a tool is missing; the message names it and how to get it.
    """
    if backend not in _SWITCHES:
        raise UsageError(f"no backend {backend!r}: take {', '.join(BACKENDS)}")
    if backend == "metal" and sys.platform != "darwin":
        raise UsageError("Metal is there on macOS only: take another --backend")
    if sys.platform != "win32":  # there CMake finds Visual Studio by itself
        compiler()
    if backend in _TOOLS:
        find(*_TOOLS[backend])
    return find(["cmake"], f"run {sys.executable} -m pip install cmake, or your system's package of it")


def compile_whole(source: Path, patch: Patch, version: str, backend: str, folder: Path, log: Path, look: Look) -> None:
    """Makes the libraries in `folder` from llama.cpp's `source`, in which the patch is applied.

    Options in the environment variable `CMAKE_ARGS` are passed on, as llama-cpp-python does.

    Raises:
        UsageError, ModelRuntimeError: see `check_tools`; or the compilation failed, or the patch does not fit.
    """
    cmake = check_tools(backend)
    target = source / patch.target
    original = target.read_text(encoding="utf-8")
    if not patch.is_in(original):
        target.write_text(patch.apply(original, version), encoding="utf-8")
    build = source / "build-dg-lsp"
    look("configuring", None)
    generator = ["-G", "Ninja"] if shutil.which("ninja") and "CMAKE_GENERATOR" not in os.environ else []
    run([cmake, "-S", str(source), "-B", str(build), *generator, *_options(backend)], log)
    cores = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or str(os.cpu_count() or 1)
    command = [cmake, "--build", str(build), "--config", "Release", "--target", "llama", "--parallel", cores]
    run(command, log, lambda line: _follow(line, look))
    copied = [_copy(path, folder) for path in sorted(build.rglob("*")) if _LIBRARY.search(path.name)]
    if not copied:
        raise ModelRuntimeError(f"the build made no library; all it said is in {log}")


def _options(backend: str) -> list[str]:
    origin = "@loader_path" if sys.platform == "darwin" else "$ORIGIN"
    # what CMake finds by itself, such as Metal on a Mac, is off unless it was asked for
    switches = [f"-D{switch}={'ON' if name == backend else 'OFF'}" for name, switch in _SWITCHES.items() if switch]
    return [
        *_OPTIONS,
        f"-DCMAKE_INSTALL_RPATH={origin}",
        *switches,
        *shlex.split(os.environ.get("CMAKE_ARGS", "")),
    ]


def _follow(line: str, look: Look) -> None:
    if percent := _PERCENT.match(line):
        look("compiling llama.cpp", int(percent[1]) / 100)
    elif count := _COUNT.match(line):
        look("compiling llama.cpp", int(count[1]) / int(count[2]))


def _copy(path: Path, folder: Path) -> Path:
    return Path(shutil.copy2(path, folder / path.name, follow_symlinks=False))
