"""Gets llama.cpp with the change that DiffusionGemma needs, or for a GPU.

The changed class alone is compiled into a small library, an overlay; or pip compiles all of llama.cpp from the changed
source. Builds for GPUs have not run: they are tested with made-up programs.
"""

import os
import re
import shutil
import sys
import tomllib
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dg_lsp import runtime
from dg_lsp.errors import ModelError, UsageError
from dg_lsp.models.download import working_folder
from dg_lsp.models.packages import ShowStep, run_pip, run_program, unpack_llama_cpp

GEMMA4 = Path(__file__).with_name("gemma4.patch")
REDUCTION = Path(__file__).with_name("gemma4_reduction.h")
"""Included by the patched class."""
BACKENDS: Mapping[str, Mapping[str, Any]] = tomllib.loads(Path(__file__).with_name("backends.toml").read_text("utf-8"))
HAS_OVERLAYS = sys.platform not in ("darwin", "win32")
"""Elsewhere a library binds its symbols when it is linked, and one class cannot be replaced."""
DEFAULT_BACKEND = "metal" if sys.platform == "darwin" else "cpu"

IsUsable = Callable[[Path], bool]
"""Whether the libraries in a folder compute DiffusionGemma, which is tested in a child process."""


# the change


def _read_patch() -> tuple[str, list[tuple[str, str]]]:
    """The path of the file in llama.cpp that gemma4.patch changes, and the old and the new lines of each place.

    The text before its first `---` is an explanation.
    """
    _, _, diff = GEMMA4.read_text(encoding="utf-8").partition("\n--- a/")
    target, *hunks = re.split(r"^@@.*\n", diff, flags=re.MULTILINE)
    return target.splitlines()[0], [(_lines_of(hunk, "-"), _lines_of(hunk, "+")) for hunk in hunks]


def _lines_of(hunk: str, sign: str) -> str:
    return "".join(line[1:] for line in hunk.splitlines(keepends=True) if line[0] in (" ", sign))


def _unpack_changed(version: str, source: Path | None, work: Path, show_step: ShowStep) -> tuple[Path, Path]:
    """The folder of llama.cpp's changed source, and the changed file."""
    source = source.expanduser().absolute() if source else None
    llama_cpp = unpack_llama_cpp(version, source, work, show_step)
    name, hunks = _read_patch()
    target = llama_cpp / name
    if not target.is_file():
        raise ModelError(f"llama.cpp of {runtime.PACKAGE} {version} has no {name}: update dg-lsp")
    text = target.read_text(encoding="utf-8")
    for old, new in hunks:
        if text.count(old) != 1:
            problem = f"{name} of llama-cpp-python {version} differs from the one that dg-lsp can change"
            raise ModelError(f"{problem}: update dg-lsp, or install llama-cpp-python 0.3.36")
        text = text.replace(old, new)
    target.write_text(text, encoding="utf-8")
    shutil.copy(REDUCTION, target.parent)
    return llama_cpp, target


# overlay

_OVERLAY_FLAGS = ("-std=c++17", "-O2", "-DNDEBUG", "-fPIC", "-shared")
_INCLUDE_PATHS = ("src/models", "src", "include", "ggml/include")
_EXPORTS = "{ global: *18llama_model_gemma4*; dg_reduction_*; local: *; };\n"
"""Mangled names: exports only the changed class and the new functions, not the templates compiled with them."""


def build_overlay(source: Path | None, is_changed: IsUsable, show_step: ShowStep = lambda *_: None) -> runtime.Runtime:
    """Builds and tests an overlay, and moves it to its folder; an existing one is replaced.

    `source` is the source distribution of llama-cpp-python or a folder with it; None fetches it.

    Raises:
        UsageError: the folder has other files.
        ModelError: a tool or the source is missing, or the compilation or the test failed.
    """
    installed = runtime.require_library()
    folder = runtime.runtime_folder()
    is_empty = folder.is_dir() and not any(folder.iterdir())
    if folder.exists() and not is_empty and not (folder / runtime.RECORD).exists():
        raise UsageError(f"{folder} contains other files than a runtime: name another folder")
    compiler = _find_compiler()
    with working_folder(folder, runtime.RUNTIME_VARIABLE) as work:
        llama_cpp, changed = _unpack_changed(installed.version, source, work, show_step)
        new = work / folder.name
        new.mkdir()
        show_step("compiling", None)
        _compile_overlay(compiler, llama_cpp, changed, installed.library.parent, new)
        built = runtime.Runtime(new, installed_library=str(installed.library), installed_sha256=installed.digest())
        built.write()
        show_step("testing it", None)
        if not is_changed(new):
            problem = "the changed llama.cpp was built, but its results are those of the installed one"
            raise ModelError(f"{problem}: run {runtime.COMMAND} --backend cpu")
        if folder.exists():  # processes that loaded the old library keep it until they end
            folder.rename(work / "replaced")
        new.rename(folder)
    return replace(built, folder=folder)


def _compile_overlay(compiler: str, llama_cpp: Path, changed: Path, libraries: Path, folder: Path) -> None:
    """Compiles the changed class into a library in `folder`."""
    exports = llama_cpp / "exports"
    exports.write_text(_EXPORTS, encoding="utf-8")
    command = [
        compiler,
        *_OVERLAY_FLAGS,
        *(f"-I{llama_cpp / name}" for name in _INCLUDE_PATHS),
        str(changed),
        *("-o", str(folder / runtime.OVERLAY_LIBRARY)),
        *("-Wl,--no-undefined", "-Wl,--no-as-needed"),
        *(str(path) for name in ("llama", "ggml", "ggml-base") if (path := libraries / f"lib{name}.so").exists()),
        *("-Xlinker", f"--version-script={exports}", "-Xlinker", "-rpath", "-Xlinker", str(libraries)),
    ]
    if reason := run_program(command):
        raise ModelError(f"{Path(compiler).name} failed: {reason}")


# all of llama.cpp


def compile_wheel(
    backend: str, source: Path | None, is_changed: IsUsable, show_step: ShowStep = lambda *_: None
) -> None:
    """Compiles llama-cpp-python of the installed version for a backend, with the change, and installs it with pip.

    Options in the environment variable `CMAKE_ARGS` are passed to CMake too, and override those of the backend.
    `source` is that of `build_overlay`.

    Raises:
        UsageError: the backend does not exist on this system.
        ModelError: a tool or the source is missing, or the compilation or the test failed; nothing is changed then.
    """
    tools = check_tools(backend)
    version = runtime.require_library().version
    with working_folder(runtime.runtime_folder(), runtime.RUNTIME_VARIABLE) as work:
        llama_cpp, _ = _unpack_changed(version, source, work, show_step)
        show_step(f"compiling llama.cpp for {backend}, in minutes", None)
        options = (*BACKENDS[backend].get("options", ()), os.environ.get("CMAKE_ARGS", ""))
        path = os.pathsep.join((os.environ.get("PATH", os.defpath), *tools))  # where CMake searches them
        variables = {**os.environ, "CMAKE_ARGS": " ".join(options).strip(), "PATH": path}
        package = llama_cpp.parents[1]
        run_pip("wheel", "--no-deps", "--no-cache-dir", "--wheel-dir", str(work), str(package), environment=variables)
        wheel = next(work.glob("*.whl"))
        show_step("testing it", None)
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(work)
        if not is_changed(work / "llama_cpp/lib"):
            problem = "llama.cpp was compiled, but its results are those of the unchanged one"
            raise ModelError(f"{problem}: please report this")
        show_step("installing the wheel", None)
        run_pip("install", "--no-deps", "--force-reinstall", str(wheel))
        if (runtime.runtime_folder() / runtime.RECORD).exists():  # an overlay for the library that was replaced
            runtime.runtime_folder().rename(work / "replaced")


# tools

_COMPILER_ADVICE = (
    "install a C++ compiler: on Debian and Ubuntu sudo apt-get install g++, on macOS xcode-select --install"
)


def check_tools(backend: str) -> list[str]:
    """Checks that the compilers for a backend are installed; returns their folders. pip gets CMake itself.

    Raises:
        UsageError: the backend does not exist on this system.
        ModelError: a tool is missing; the message names it and how to install it.
    """
    if backend not in BACKENDS:
        raise UsageError(f"no backend {backend!r}: use {', '.join(BACKENDS)}")
    if backend == "metal" and sys.platform != "darwin":
        raise UsageError("Metal exists only on macOS: use another --backend")
    programs = [] if sys.platform == "win32" else [_find_compiler()]  # there CMake finds Visual Studio
    if tools := BACKENDS[backend].get("tools"):
        programs.append(_find_program(tools, BACKENDS[backend]["advice"]))
    return [str(Path(program).parent) for program in programs]


def _find_compiler() -> str:
    """The C++ compiler in `CXX`, or that of the system."""
    compiler = os.environ.get("CXX")
    return _find_program([compiler] if compiler else ["c++", "g++", "clang++"], _COMPILER_ADVICE)


def _find_program(names: Sequence[str], advice: str) -> str:
    """The path of the first of these programs on PATH or beside this Python."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)])
    programs = [program for name in names if (program := shutil.which(name, path=path))]
    # Windows searches the working directory too, which may be a folder that others wrote
    program = next((program for program in programs if Path(program).is_absolute()), None)
    if program is None:
        raise ModelError(f"{' or '.join(names)} is missing: {advice}")
    return program
