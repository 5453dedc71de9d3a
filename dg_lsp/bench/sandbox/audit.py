"""Refusals inside Python, before the system is asked: the last line where the kernel has no better one.

Not a wall: who looks for a way around Python's own audit hook finds one.
"""

import os
import sys
from pathlib import Path

REFUSED = ("socket.", "subprocess.", "ctypes.", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "os.system", "pty.")
"""Beginnings of the names of audit events."""
REFUSED_WHOLE = ("os.kill", "os.killpg", "os.startfile", "signal.pthread_kill", "_thread.start_new_thread")
REFUSED_MODULES = ("_posixsubprocess", "_winapi")

CHANGES = {
    "os.chflags": 1,
    "os.chmod": 1,
    "os.chown": 1,
    "os.link": 2,
    "os.mkdir": 1,
    "os.remove": 1,
    "os.removexattr": 1,
    "os.rename": 2,
    "os.rmdir": 1,
    "os.setxattr": 1,
    "os.symlink": 2,
    "os.truncate": 1,
    "os.utime": 1,
}
"""Events that change files, and how many paths they begin with."""
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def install(folder: Path) -> None:
    """From here on and for good: no sockets, processes or threads, and nothing written outside of `folder`."""
    root = os.path.realpath(folder) + os.sep
    realpath, separator = os.path.realpath, os.sep  # the program may replace what it finds in the modules

    def is_inside(path: object) -> bool:
        if isinstance(path, int):
            return True  # open already
        return isinstance(path, (str, bytes)) and (realpath(os.fsdecode(path)) + separator).startswith(root)

    def look(event: str, arguments: tuple[object, ...]) -> None:
        is_refused = event.startswith(REFUSED) or event in REFUSED_WHOLE
        if event == "import":
            is_refused = arguments[0] in REFUSED_MODULES
        elif event == "open":
            path, _, flags = arguments
            is_refused = isinstance(flags, int) and bool(flags & WRITING) and not is_inside(path)
        elif event in CHANGES:
            is_refused = not all(is_inside(path) for path in arguments[: CHANGES[event]])
        if is_refused:
            raise PermissionError(f"the sandbox refuses {event}")

    sys.addaudithook(look)
