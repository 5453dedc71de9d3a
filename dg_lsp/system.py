"""The machine, this process and the user's folders: memory, child processes, GPUs, and files that are replaced."""

import contextlib
import ctypes
import functools
import hashlib
import json
import os
import platform
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path
from typing import Any, TypeVar

from dg_lsp.errors import InputFileError, UsageError

Item = TypeVar("Item")
_CPU_INFO = Path("/proc/cpuinfo")
_GROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")
_MALLOC_OPTIONS = {-8: 1, -3: 128 << 10, -1: 128 << 10}
"""glibc's `M_ARENA_MAX`, `M_MMAP_THRESHOLD` and `M_TRIM_THRESHOLD`, from malloc.h."""
_TRIM_SECONDS = 10.0
_LIBRARY_PATHS = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "DYLD_FALLBACK_LIBRARY_PATH")


def system_free(groups: Path = _GROUPS, own: Path = _OWN) -> int:
    """Bytes that this process can allocate without swapping and without reaching a limit of its control groups.

    Cached files count as free. Only version 2 of control groups is read.
    """
    import psutil

    free = int(psutil.virtual_memory().available)
    name = re.search(r"^0::/(.*)", _text(own), re.MULTILINE)
    innermost = groups / name[1] if name else groups
    for group in (innermost, *innermost.parents):
        limit = read_number(group / "memory.max")
        used = read_number(group / "memory.current")
        if limit is not None and used is not None:
            cached = re.findall(r"^(?:in)?active_file (\d+)", _text(group / "memory.stat"), re.MULTILINE)
            free = min(free, limit - used + sum(map(int, cached)))  # Linux can free what it has cached
    return max(0, free)


LOOPBACK = ("localhost", "127.0.0.1", "::1")
"""Hosts that only this machine can reach."""
NEUTRAL_FOLDER = Path(Path(sys.prefix).anchor)
"""The working directory of child processes that need none of the user's: the root of the file system."""


def python_command(module: str, *arguments: str) -> list[str]:
    """The command line of a child process that runs a module with this Python.

    `-P` keeps the working directory off `sys.path`: a folder that the user opens may contain a `json.py`.
    """
    return [sys.executable, "-P", "-m", module, *arguments]


def python_environment() -> dict[str, str]:
    """The environment of a child process that imports the same dg-lsp and packages as this one."""
    folders = (str(Path(__file__).parents[1]), *(entry for entry in sys.path if Path(entry).is_absolute()))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}


@functools.cache
def keep_heap_small() -> None:
    """Lets a process that runs for days return freed memory to the system, where the C library is glibc.

    All threads that start from now on share one heap: otherwise there are up to eight for each core, and each keeps
    what a thread once used. Large blocks are mapped one by one: glibc would keep up to 64 MiB of them. A thread returns
    the free pages between blocks in use.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another C library; Windows
        libc = ctypes.CDLL(None)
        for option, value in _MALLOC_OPTIONS.items():
            libc.mallopt(option, value)
        threading.Thread(target=_trim_heap, args=(libc.malloc_trim,), name="heap-trimmer", daemon=True).start()


def _trim_heap(trim: Callable[[int], object]) -> None:
    used = 0.0
    while True:
        time.sleep(_TRIM_SECONDS)
        if (seconds := time.process_time()) > used + 0.1:  # else the process is idle
            used = seconds
            trim(0)


def free_disk(folder: Path) -> int:
    """Free bytes on the disk of a folder, which need not exist yet."""
    return shutil.disk_usage(next(path for path in (folder, *folder.parents) if is_present(path))).free


def is_present(path: Path) -> bool:
    """Whether there is such a file or folder: false, not an error, below a folder that only another user can open."""
    with contextlib.suppress(ValueError):  # a name that no file can have, such as one with a NUL
        return os.access(path, os.F_OK)
    return False


def leave_out_relative_programs() -> None:
    """Removes relative and empty entries of PATH, and for child processes of the loader's paths of libraries.

    They name the working directory, which may be a folder that others wrote: `doctor` would run its `nvidia-smi`.
    """
    entries = [entry for entry in os.get_exec_path() if Path(entry).is_absolute()]
    os.environ["PATH"] = os.pathsep.join(entries) or os.defpath
    for name in _LIBRARY_PATHS:
        folders = [entry for entry in re.split("[:;]", os.environ.pop(name, "")) if Path(entry).is_absolute()]
        if folders:
            os.environ[name] = ":".join(folders)
    os.environ["NoDefaultCurrentDirectoryInExePath"] = "1"  # noqa: SIM112  (Windows searches it without an entry)


def processor_name() -> str:
    """The model of the processor, or its architecture."""
    name = re.search(r"^model name\s*: (.+)", _text(_CPU_INFO), re.MULTILINE)
    return name[1] if name else platform.processor() or platform.machine()


def resident_bytes() -> int:
    """Memory of this process."""
    import psutil

    return int(psutil.Process().memory_info().rss)


def peak_bytes() -> int | None:
    """The largest memory that this process had; None if the system does not report it."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def memory_bandwidth(num_cores: int) -> float:
    """Bytes per second that this process reads with so many threads: the best of four readings of 64 MiB."""
    from concurrent.futures import ThreadPoolExecutor

    import numpy as np

    parts = np.array_split(np.ones(1 << 24, np.float32), num_cores)
    times = []
    with ThreadPoolExecutor(num_cores) as pool:
        for _ in range(4):
            start = time.perf_counter()
            list(pool.map(np.max, parts))
            times.append(time.perf_counter() - start)
    return float(sum(part.nbytes for part in parts) / min(times))


def _text(path: Path) -> str:
    """The text of a file of the system; empty if there is no such file."""
    with contextlib.suppress(OSError):
        return path.read_text("utf-8", "replace")
    return ""


def read_number(path: Path) -> int | None:
    """The decimal or hexadecimal number in a file of the system; None without such a file, and for `max`."""
    with contextlib.suppress(OSError, ValueError):
        return int(path.read_text(encoding="ascii"), 0)
    return None


DATA_VARIABLE = "DG_LSP_DATA_DIR"
"""Environment variable with another folder for data."""
CONFIG_VARIABLE = "DG_LSP_CONFIG_DIR"
"""Environment variable with another folder for settings."""


def data_folder() -> Path:
    """The user's folder for dg-lsp data; it may not exist yet."""
    return _user_folder(DATA_VARIABLE, "XDG_DATA_HOME", "~/.local/share", "LOCALAPPDATA", "~/AppData/Local")


def config_folder() -> Path:
    """The user's folder for dg-lsp settings; it may not exist."""
    return _user_folder(CONFIG_VARIABLE, "XDG_CONFIG_HOME", "~/.config", "APPDATA", "~/AppData/Roaming")


def _user_folder(variable: str, xdg: str, xdg_default: str, windows: str, windows_default: str) -> Path:
    if given := os.environ.get(variable):
        return expanded(given).absolute()
    if sys.platform == "darwin":
        base = "~/Library/Application Support"
    elif sys.platform == "win32":
        base = os.environ.get(windows) or windows_default
    else:
        base = os.environ.get(xdg) or xdg_default
        base = base if expanded(base).is_absolute() else xdg_default  # a relative path would be a folder of any project
    return NEUTRAL_FOLDER / expanded(base) / "dg-lsp"  # without a home the path is relative: a folder of any project


GPU_VARIABLES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GGML_VK_VISIBLE_DEVICES")
"""Variables that CUDA, ROCm and llama.cpp's Vulkan backend read when they start: the GPUs that a process sees."""


def pin_gpu(number: int, environment: MutableMapping[str, str] = os.environ) -> None:
    """Makes this process and its children see one GPU alone; before any library for GPUs is loaded.

    The number is that of `nvidia-smi`; where a variable lists GPUs already, it counts in this list. Tested without a
    GPU: the variables are set as their documentation has it.

    Raises UsageError: the list has no such entry.
    """
    pinned = {"CUDA_DEVICE_ORDER": environment.get("CUDA_DEVICE_ORDER", "PCI_BUS_ID")}
    for name in GPU_VARIABLES:
        listed = [entry.strip() for entry in environment.get(name, "").split(",") if entry.strip()]
        if listed and number >= len(listed):
            raise UsageError(f"GPU {number}: {name} is {environment[name]}, which lists {len(listed)}; count from 0")
        pinned[name] = listed[number] if listed else str(number)
    environment.update(pinned)


def replace_file(path: Path, old: bytes, new: bytes) -> None:
    """Replaces `path` atomically by a temporary file that is flushed to the disk first.

    Mode, owner and extended attributes are kept as far as this user may set them. Hard links keep the old content.
    `path` must not be a symbolic link: the link itself would be replaced. Raises InputFileError if it is not `old` now.
    """
    status = path.stat()
    with replacement(path) as temporary, temporary.open("wb") as file:
        file.write(new)
        file.flush()
        with contextlib.suppress(OSError, AttributeError):  # AttributeError: Windows
            os.chown(temporary, status.st_uid, status.st_gid)  # first, because it clears the set-user-id bits
        shutil.copystat(path, temporary)
        os.utime(temporary)
        os.fsync(file.fileno())
        if path.read_bytes() != old:
            raise InputFileError(f"{path} changed while it was being filled: nothing was written; run it again")


def write_private(path: Path, tree: Any) -> None:
    """Writes JSON that only the user can read, atomically, or raises OSError."""
    with replacement(path) as new:
        new.touch(mode=0o600)
        new.write_text(json.dumps(tree), encoding="ascii")


@contextlib.contextmanager
def replacement(path: Path) -> Iterator[Path]:
    """A path in a private folder beside `path`. At the end its file replaces `path`; after an error it is removed."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".dg-lsp-", ignore_cleanup_errors=True) as folder:
        new = Path(folder) / path.name
        yield new
        new.replace(path)


def read_record(path: Path, structure: Callable[[Any], Item]) -> Item | None:
    """What `structure` makes of the JSON in a file; None if it is missing or damaged, or `structure` fails."""
    try:
        return structure(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None


def file_sha256(path: Path) -> str:
    """The checksum of a file, as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def expanded(path: str) -> Path:
    """The path with `~` replaced by the home, if the system knows it."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)
