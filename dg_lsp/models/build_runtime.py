"""Gets llama.cpp for a GPU or with the change that DiffusionGemma needs, from a wheel or by compilation.

Builds for the processor have run; those for GPUs have not: their commands are tested with made-up programs.
"""

import os
import re
import shlex
import shutil
import sys
import tomllib
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dg_lsp import runtime
from dg_lsp.errors import ModelError, ModelRuntimeError, UsageError
from dg_lsp.models.download import check_space, working_folder
from dg_lsp.models.packages import ShowStep, run, run_pip, unpack_llama_cpp

GEMMA4 = Path(__file__).with_name("gemma4.patch")
REDUCTION = Path(__file__).with_name("gemma4_reduction.h")
"""Included by the patched class."""
_OVERLAY_PARTS = ("src/", "include/", "ggml/include/")
"""Folders with the files that one class includes."""

IsChanged = Callable[[Path], bool]
"""Whether the runtime in a folder computes what the patch is for."""


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """Options of `dg-lsp models build-runtime`."""

    source: Path | None = None  # source distribution of llama-cpp-python, or a folder with it; None fetches it
    backend: str | None = None  # build all of llama.cpp for this backend

    @property
    def whole_backend(self) -> str:
        """The backend to build all of llama.cpp for; empty if one class is enough."""
        # on macOS and Windows a library binds its symbols when it is linked
        if not self.backend and sys.platform not in ("darwin", "win32"):
            return ""
        return self.backend or ("metal" if sys.platform == "darwin" else "cpu")


def build(
    options: BuildOptions, is_changed: IsChanged, show_step: ShowStep = lambda *_: None
) -> runtime.Runtime | None:
    """Builds and tests the runtime, and moves it to its folder; an existing runtime is replaced.

    Returns None if the source of the installed version contains the change already.

    Raises:
        UsageError: an unknown backend, or a folder with other files.
        ModelError: a tool or the source is missing, or the compilation or the test failed.
    """
    installed = runtime.require_library()
    folder, backend = runtime.runtime_folder(), options.whole_backend
    _check_folder(folder)
    if backend:
        check_tools(backend)
    else:
        _find_compiler()
    with working_folder(folder, runtime.VARIABLE) as work:
        new, log = work / folder.name, folder.with_name(f"{folder.name}.log")
        new.mkdir()
        log.unlink(missing_ok=True)
        source = options.source.expanduser().absolute() if options.source else None
        llama_cpp = unpack_llama_cpp(installed.version, source, work, ("",) if backend else _OVERLAY_PARTS, show_step)
        if not _compile(llama_cpp, backend, installed, new, log, show_step):
            return None
        kind = "whole" if backend else "overlay"
        facts = (kind, backend, installed.version, str(installed.library), installed.digest())
        runtime.Runtime(new, *facts).write()
        show_step("testing it", None)
        if not is_changed(new):
            advice = "please report this" if backend else f"run {runtime.COMMAND} --backend cpu"
            raise ModelRuntimeError(
                f"the changed llama.cpp was built, but its results are those of the installed one: {advice}"
            )
        log.rename(new / "build.log")
        if folder.exists():  # processes that loaded the old library keep it until they end
            folder.rename(work / "replaced")
        new.rename(folder)
    return runtime.Runtime(folder, *facts)


def _check_folder(folder: Path) -> None:
    is_empty = folder.is_dir() and not any(folder.iterdir())
    if folder.exists() and not is_empty and not (folder / "runtime.json").exists():
        raise UsageError(f"{folder} contains other files than a runtime: name another folder")


def _compile(
    llama_cpp: Path, backend: str, installed: runtime.InstalledLibrary, new: Path, log: Path, show_step: ShowStep
) -> bool:
    """Patches the source and writes the libraries to `new`; False if one class is enough and has the change already."""
    patch = Patch.read()
    target = llama_cpp / patch.target
    if not target.is_file():
        raise ModelRuntimeError(
            f"llama.cpp of {runtime.PACKAGE} {installed.version} has no {patch.target}: update dg-lsp"
        )
    original = target.read_text(encoding="utf-8")
    is_patched = patch.is_in(original)
    if is_patched and not backend:
        return False
    if not is_patched:
        target.write_text(patch.apply(original, installed.version), encoding="utf-8")
        shutil.copy(REDUCTION, target.parent)
    if backend:
        _compile_whole(llama_cpp, backend, new, log, show_step)
    else:
        show_step("compiling", None)
        _compile_overlay(target, llama_cpp, installed, new, log)
    return True


# the change


@dataclass(frozen=True, slots=True)
class Patch:
    """A unified diff of one file."""

    target: str  # path of the changed file inside llama.cpp
    hunks: tuple[tuple[str, str], ...]  # old and new lines, with their context

    @classmethod
    def read(cls) -> "Patch":
        """Reads gemma4.patch; the text before its first `---` is an explanation."""
        _, _, diff = GEMMA4.read_text(encoding="utf-8").partition("\n--- a/")
        target, *hunks = re.split(r"^@@.*\n", diff, flags=re.MULTILINE)
        return cls(target.splitlines()[0], tuple((_lines_of(hunk, "-"), _lines_of(hunk, "+")) for hunk in hunks))

    def is_in(self, source: str) -> bool:
        """Whether the source contains the change."""
        return all(new in source and old not in source for old, new in self.hunks)

    def apply(self, source: str, version: str) -> str:
        """The changed source of llama-cpp-python `version`; raises ModelRuntimeError if the patch does not fit it."""
        for old, new in self.hunks:
            if source.count(old) != 1:
                raise ModelRuntimeError(
                    f"{self.target} of llama-cpp-python {version} differs from the one that dg-lsp can change: "
                    "update dg-lsp, or install llama-cpp-python 0.3.36"
                )
            source = source.replace(old, new)
        return source


def _lines_of(hunk: str, sign: str) -> str:
    return "".join(line[1:] for line in hunk.splitlines(keepends=True) if line[0] in (" ", sign))


# prebuilt wheels

_MAX_EXPANSION = 20
"""Times its compressed size; libraries of llama.cpp expand to 2.4 to 2.8 times theirs."""
SeesGpu = Callable[[Path], bool]
"""Whether llama.cpp in a folder lists a GPU."""


def install_wheel(backends: Sequence[str], sees_gpu: SeesGpu, show_step: ShowStep = lambda *_: None) -> str:
    """Installs a wheel of the same llama-cpp-python for one of these backends, if pip has one and it runs here.

    Returns the reason if it does not; the installed package is unchanged then.
    """
    installed = runtime.installed_library()
    if installed is None:
        return f"{runtime.PACKAGE} is not installed"
    show_step("searching a prebuilt wheel", None)
    with working_folder(runtime.runtime_folder(), runtime.VARIABLE) as work:
        try:
            options = ("--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--dest", str(work))
            run_pip("download", f"{runtime.PACKAGE}=={installed.version}", *options)
            wheel = next(work.glob("*.whl"))
            with zipfile.ZipFile(wheel) as archive:
                libraries = [name for name in archive.namelist() if name.startswith("llama_cpp/lib/")]
                if not any(f"ggml-{backend}" in name for backend in backends for name in libraries):
                    return f"{wheel.name} of the package index is not for {' or '.join(backends)}"
                size = sum(archive.getinfo(name).file_size for name in libraries)
                if size > _MAX_EXPANSION * wheel.stat().st_size:
                    return f"{wheel.name} of the package index expands to {size / 1e6:,.0f} MB, as no library does"
                check_space(work, size)
                archive.extractall(work, libraries)
            if not sees_gpu(work / "llama_cpp/lib"):
                return f"llama.cpp of the prebuilt wheel {wheel.name} lists no GPU here"
            show_step("installing the wheel", None)
            run_pip("install", "--no-deps", "--force-reinstall", str(wheel))
        except (ModelError, zipfile.BadZipFile, StopIteration) as error:
            return f"no prebuilt wheel of {runtime.PACKAGE} {installed.version} ({error})"
    return ""


# compilation

_OVERLAY_FLAGS = ("-std=c++17", "-O2", "-DNDEBUG", "-fPIC", "-shared")
_INCLUDE_PATHS = ("src/models", "src", "include", "ggml/include")
_EXPORTS = "{ global: *18llama_model_gemma4*; dg_reduction_*; local: *; };\n"
"""Mangled names: exports only the changed class and the new functions, not the templates compiled with them."""
_CMAKE_OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=ON",
    "-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON",
    *(f"-DLLAMA_BUILD_{name}=OFF" for name in ("COMMON", "TESTS", "TOOLS", "EXAMPLES", "SERVER", "APP")),
)
BACKENDS: Mapping[str, Mapping[str, Any]] = tomllib.loads(Path(__file__).with_name("backends.toml").read_text("utf-8"))
_PROGRESS = re.compile(r"\[\s*(\d+)(?:%|/(\d+))\]")
"""`[ 50%]` of Make or `[3/4]` of Ninja."""
_LIBRARY = re.compile(r"\.(so(\.\d+)*|dylib|dll)$")
_COMPILER_ADVICE = (
    "install a C++ compiler: on Debian and Ubuntu sudo apt-get install g++, on macOS xcode-select --install"
)


def check_tools(backend: str) -> str:
    """The path of CMake, if all tools for this backend are installed.

    Raises:
        UsageError: the backend does not exist on this system.
        ModelRuntimeError: a tool is missing; the message names it and how to install it.
    """
    if backend not in BACKENDS:
        raise UsageError(f"no backend {backend!r}: use {', '.join(BACKENDS)}")
    if backend == "metal" and sys.platform != "darwin":
        raise UsageError("Metal exists only on macOS: use another --backend")
    if sys.platform != "win32":  # there CMake finds Visual Studio
        _find_compiler()
    if tools := BACKENDS[backend].get("tools"):
        _find_program(tools, BACKENDS[backend]["advice"])
    return _find_program(["cmake"], f"run {sys.executable} -m pip install cmake, or your system's package of it")


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
        raise ModelRuntimeError(f"{' or '.join(names)} is missing: {advice}")
    return program


def _compile_overlay(
    changed: Path, llama_cpp: Path, installed: runtime.InstalledLibrary, folder: Path, log: Path
) -> None:
    """Compiles the changed class into a library in `folder`."""
    exports = llama_cpp / "exports"
    exports.write_text(_EXPORTS, encoding="utf-8")
    libraries = installed.library.parent
    _run(
        [
            _find_compiler(),
            *_OVERLAY_FLAGS,
            *(f"-I{llama_cpp / name}" for name in _INCLUDE_PATHS),
            str(changed),
            *("-o", str(folder / runtime.library_name())),
            *("-Wl,--no-undefined", "-Wl,--no-as-needed"),
            *(str(path) for name in ("llama", "ggml", "ggml-base") if (path := libraries / f"lib{name}.so").exists()),
            *("-Xlinker", f"--version-script={exports}", "-Xlinker", "-rpath", "-Xlinker", str(libraries)),
        ],
        log,
    )


def _compile_whole(source: Path, backend: str, folder: Path, log: Path, show_step: ShowStep) -> None:
    """Compiles all of llama.cpp into libraries in `folder`.

    Options in the environment variable `CMAKE_ARGS` are passed to CMake, as llama-cpp-python does.
    """
    cmake, build_folder = check_tools(backend), source / "build-dg-lsp"
    show_step("configuring", None)
    generator = ["-G", "Ninja"] if shutil.which("ninja") and "CMAKE_GENERATOR" not in os.environ else []
    _run([cmake, "-S", str(source), "-B", str(build_folder), *generator, *_cmake_options(backend)], log)
    cores = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or str(os.cpu_count() or 1)
    options = ["--config", "Release", "--target", "llama", "--parallel", cores]

    def show_progress(line: str) -> None:
        if progress := _PROGRESS.match(line):
            show_step("compiling llama.cpp", int(progress[1]) / int(progress[2] or 100))

    _run([cmake, "--build", str(build_folder), *options], log, show_progress)
    libraries = [path for path in sorted(build_folder.rglob("*")) if _LIBRARY.search(path.name)]
    if not libraries:
        raise ModelRuntimeError(f"the build made no library; its output is in {log}")
    for path in libraries:
        shutil.copy2(path, folder / path.name, follow_symlinks=False)


def _cmake_options(backend: str) -> list[str]:
    origin = "@loader_path" if sys.platform == "darwin" else "$ORIGIN"
    # CMake would enable some backends by itself, such as Metal on a Mac
    switches = [
        f"-D{facts['switch']}={'ON' if name == backend else 'OFF'}" for name, facts in BACKENDS.items() if facts
    ]
    if backend == "sycl":  # only Intel's compilers have it
        names = ("cl", "icx") if sys.platform == "win32" else ("icx", "icpx")
        switches += [f"-DCMAKE_{language}_COMPILER={name}" for language, name in zip(("C", "CXX"), names, strict=True)]
    user_options = shlex.split(os.environ.get("CMAKE_ARGS", ""))
    return [*_CMAKE_OPTIONS, f"-DCMAKE_INSTALL_RPATH={origin}", *switches, *user_options]


def _run(command: Sequence[str], log: Path, on_line: Callable[[str], object] = lambda _line: None) -> None:
    """Runs a program and appends its output to the log."""
    with log.open("a", buffering=1, encoding="utf-8") as file:
        file.write(f"$ {' '.join(command)}\n")

        def write(line: str) -> None:
            file.write(f"{line}\n")
            on_line(line)

        if reason := run(command, write):
            raise ModelRuntimeError(f"{Path(command[0]).name} failed: {reason}; its output is in {log}")
