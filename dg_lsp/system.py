"""What this process has of the machine: memory that is free by the system, a container or a limit; child processes."""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

_MEMORY = Path("/proc/meminfo")
_GROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")
_LIMITS = (
    ("memory.max", "memory.current", ("inactive_file", "active_file")),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")),
)
"""Of both versions of Linux's control groups: limit, use, and what of that the system takes back when it has to."""
_HIERARCHIES = {"": ("", "unified"), "memory": ("memory",)}
"""Where a hierarchy with these controllers is mounted."""


def system_free(groups: Path = _GROUPS, own: Path = _OWN) -> int:
    """Bytes that a process may still take without swapping and without being killed for it.

    Files that are only kept in case they are read again count as free, in a container too.
    """
    free = _available()
    for group in _groups(groups, own):
        for limit, used, kept in _LIMITS:
            allowed, taken = _number(group / limit), _number(group / used)
            if allowed is not None and taken is not None:
                free = min(free, allowed - taken + _kept(group / "memory.stat", kept))
    return max(0, min(free, _address_space()))


NEUTRAL_FOLDER = Path(sys.prefix).anchor
"""The working directory of child processes that need none of the user's: the root of the file system."""


def python_command(module: str, *arguments: str) -> list[str]:
    """The command line of a child process that runs a module with this Python.

    `-P` keeps the working directory off `sys.path`: a folder that the user opens may contain a `json.py`.
    """
    return [sys.executable, "-P", "-m", module, *arguments]


def resident_bytes() -> int | None:
    """Bytes that this process holds; None where the system does not say."""
    import psutil

    try:
        return int(psutil.Process().memory_info().rss)
    except psutil.Error:
        return None


def peak_bytes() -> int | None:
    """The most that it has held; None where the system does not say."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def _available() -> int:
    with contextlib.suppress(OSError), _MEMORY.open(encoding="ascii") as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    import psutil

    return int(psutil.virtual_memory().available)


def _groups(root: Path, own: Path) -> Iterator[Path]:
    """Folders of the control groups that this process is in, up to the outermost one that it sees."""
    try:
        lines = own.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        controllers, _, path = line.partition(":")[2].partition(":")
        for mount in _HIERARCHIES.get(controllers, ()):
            folder = root / mount
            yield folder
            for name in Path(path).parts[1:]:
                folder /= name
                yield folder


def _kept(stat: Path, names: tuple[str, ...]) -> int:
    try:
        lines = stat.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return sum(int(value) for name, _, value in (line.partition(" ") for line in lines) if name in names)


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):  # no such group, or "max"
        return None


def _address_space() -> int:
    """What is left under `ulimit -v`; much where there is no such limit."""
    if os.name == "nt":
        return 1 << 62
    import resource

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return 1 << 62
    import psutil

    return limit - int(psutil.Process().memory_info().vms)


VARIABLE = "DG_LSP_DATA_DIR"
"""Names another folder."""


def data_folder() -> Path:
    """The folder of this user's dg-lsp data, where the system keeps such; need not be there yet."""
    if given := os.environ.get(VARIABLE):
        return Path(given).expanduser()
    if sys.platform == "darwin":
        base = Path("~/Library/Application Support")
    elif sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or "~/AppData/Local")
    else:
        base = Path(os.environ.get("XDG_DATA_HOME") or "~/.local/share")
    return base.expanduser() / "dg-lsp"
