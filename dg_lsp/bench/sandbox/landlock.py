"""Which files the process may touch, held by the kernel (Linux 5.13 and later). Runs inside the sandboxed process.

Needs no privileges. Files that are open already stay open; modes, owners and times are not Landlock's matter but
seccomp's.
"""

import ctypes
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

from dg_lsp.bench.sandbox.kernel import forgo_privileges, syscall

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
CREATE_RULESET_VERSION, RULE_PATH_BENEATH = 1, 1

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
REMOVE_DIR, REMOVE_FILE, MAKE_DIR, MAKE_REG, MAKE_SYM = 1 << 4, 1 << 5, 1 << 7, 1 << 8, 1 << 12
REFER, TRUNCATE = 1 << 13, 1 << 14
BIND_TCP, CONNECT_TCP = 1 << 0, 1 << 1
SCOPE_ABSTRACT_UNIX_SOCKET, SCOPE_SIGNAL = 1 << 0, 1 << 1

READING = READ_FILE | READ_DIR
WRITING = WRITE_FILE | REMOVE_DIR | REMOVE_FILE | MAKE_DIR | MAKE_REG | MAKE_SYM | REFER | TRUNCATE
OF_A_FILE = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE

NUM_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}
"""Rights to files that a version of Landlock's interface knows; 16 from version 5 on."""

LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/nix/store", "/usr/share/zoneinfo")
DATA = ("/etc/ld.so.cache", "/etc/localtime", "/dev/null", "/dev/zero", "/dev/urandom")


class _Ruleset(ctypes.Structure):
    """`struct landlock_ruleset_attr`."""

    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _PathBeneath(ctypes.Structure):
    """`struct landlock_path_beneath_attr`."""

    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def restrict(folder: Path) -> None:
    """From here on, everything beneath `folder`, and reading what Python needs, is all that is left.

    Raises:
        OSError: the kernel has no Landlock, or it is turned off.
    """
    if sys.platform != "linux":
        raise OSError("no Landlock here")
    version = syscall(CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint(CREATE_RULESET_VERSION))
    handled = (1 << NUM_RIGHTS.get(version, 16)) - 1
    ruleset = _Ruleset(
        files=handled,
        network=BIND_TCP | CONNECT_TCP if version >= 4 else 0,
        scoped=SCOPE_ABSTRACT_UNIX_SOCKET | SCOPE_SIGNAL if version >= 6 else 0,
    )
    size = 8 if version < 4 else 16 if version < 6 else 24
    rules = syscall(CREATE_RULESET, ctypes.byref(ruleset), ctypes.c_size_t(size), ctypes.c_uint(0))
    try:
        _allow(rules, folder, (READING | WRITING) & handled)
        for path in readable():
            _allow(rules, path, READING)
        forgo_privileges()
        syscall(RESTRICT_SELF, ctypes.c_int(rules), ctypes.c_uint(0))
    finally:
        os.close(rules)


def readable() -> Iterator[Path]:
    """What Python and its compiled modules may want to read, as far as it is there."""
    of_python = {*sys.path, str(Path(sys.base_prefix) / "lib"), str(Path(sys.base_exec_prefix) / "lib")}
    for path in map(Path, (*sorted(filter(None, of_python)), *LIBRARIES, *DATA)):
        if path.exists():
            yield path


def _allow(rules: int, path: Path, rights: int) -> None:
    parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISDIR(os.fstat(parent).st_mode):
            rights &= OF_A_FILE
        rule = _PathBeneath(allowed=rights, parent=parent)
        syscall(ADD_RULE, ctypes.c_int(rules), ctypes.c_int(RULE_PATH_BENEATH), ctypes.byref(rule), ctypes.c_uint(0))
    finally:
        os.close(parent)
