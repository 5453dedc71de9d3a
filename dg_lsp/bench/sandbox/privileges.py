"""Less than the process began with: rlimits, capabilities, namespaces. Runs inside the sandboxed process."""

import ctypes
import os
import resource
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from dg_lsp.bench.sandbox.kernel import PR_SET_PDEATHSIG, call, prctl, syscall

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER = 0x20000, 0x8000000, 0x10000000
CLONE_NEWPID, CLONE_NEWNET = 0x20000000, 0x40000000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE = 442, -100, 0x8000
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV = 1, 2, 4
CAPABILITY_VERSION_3 = 0x20080522


class _MountAttributes(ctypes.Structure):
    """`struct mount_attr`."""

    _fields_ = (
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    )


def limit(wanted: Mapping[str, int]) -> None:
    """Hard limits by the names of `resource`; a lower one stays, and one that the system has not is left out."""
    for name, value in wanted.items():
        kind = getattr(resource, name, None)
        if kind is None:
            continue
        _, hard = resource.getrlimit(kind)
        if hard == resource.RLIM_INFINITY or hard > value:
            hard = value
        # a second between both: SIGXCPU tells that time is up, SIGKILL would tell nothing
        soft = max(1, hard - 1) if name == "RLIMIT_CPU" else hard
        with suppress(OSError, ValueError):  # macOS knows an address space and limits none
            resource.setrlimit(kind, (soft, hard))


def drop_capabilities() -> None:
    """Gives up all of root's privileges but being root.

    Raises:
        OSError: this is no Linux.
    """
    if sys.platform != "linux":
        raise OSError("no capabilities here")
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    nothing = (ctypes.c_uint32 * 6)()
    call("capset", header, nothing)


def enter_namespaces(folder: Path) -> None:
    """A network without a wire, a view of the file system in which only `folder` can be written, no other processes.

    Works for root, and for everybody where the kernel lets anybody make user namespaces. The process that returns is
    a child of the one that called: the first of its process namespace, and when it ends the kernel ends all others.

    Raises:
        OSError: it does not.
    """
    if sys.platform != "linux":
        raise OSError("no namespaces here")
    spaces = CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWNET | CLONE_NEWPID
    call("unshare", spaces | (CLONE_NEWUSER if os.geteuid() else 0))
    _mount(None, b"/", MS_REC | MS_PRIVATE)
    place = os.fsencode(folder)
    _mount(place, place, MS_BIND)
    _change_mounts(b"/", AT_RECURSIVE, added=MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV)
    _change_mounts(place, 0, removed=MOUNT_ATTR_RDONLY)
    os.chdir(folder)  # into the new mount
    child = os.fork()
    if child:
        _end_as(child)
    end_with_parent()


def end_with_parent() -> None:
    """The kernel kills this process when its parent ends; elsewhere than on Linux nothing does."""
    if sys.platform == "linux":
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _end_as(child: int) -> None:
    """Waits for the child and ends as it does; never returns."""
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 1)


def _mount(source: bytes | None, target: bytes, flags: int) -> None:
    call("mount", source, target, None, ctypes.c_ulong(flags), None)


def _change_mounts(path: bytes, flags: int, *, added: int = 0, removed: int = 0) -> None:
    attributes = _MountAttributes(attr_set=added, attr_clr=removed)
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    syscall(MOUNT_SETATTR, ctypes.c_int(AT_FDCWD), path, ctypes.c_uint(flags), ctypes.byref(attributes), size)
