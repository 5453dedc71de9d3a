"""Calls of the C library that Python's own has not. Runs inside the sandboxed process."""

import ctypes
import os

PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 22, 38


def call(name: str, *arguments: object) -> int:
    """A function of the C library.

    Raises:
        OSError: it failed, or this library has no such function.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        result = int(getattr(libc, name)(*arguments))
    except AttributeError as error:
        raise OSError(f"no {name} in this C library") from error
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)
    return result


def syscall(number: int, *arguments: object) -> int:
    """A system call by its number. Integers must be ctypes' own, for 32 bits would be passed otherwise.

    Raises:
        OSError: it failed, or the kernel does not have it.
    """
    return call("syscall", ctypes.c_long(number), *arguments)


def prctl(option: int, value: int, pointer: object = None) -> None:
    """Sets a property of this process.

    Raises:
        OSError: the kernel refused.
    """
    call("prctl", option, ctypes.c_ulong(value), pointer, ctypes.c_ulong(0), ctypes.c_ulong(0))


def forgo_privileges() -> None:
    """No program that this process starts gains privileges: what Landlock and seccomp ask for.

    Raises:
        OSError: the kernel refused.
    """
    prctl(PR_SET_NO_NEW_PRIVS, 1)
