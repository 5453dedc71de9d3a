"""Where this user's daemon is found: its folder, and the record that says how it is reached. Light: a relay imports it.

The folder and everything in it can be read by the user alone. Whoever can read the record may talk to the daemon: it
holds the token that every connection begins with. What belongs to another user, or may be written by one, is not there.
"""

import errno
import json
import os
import stat
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dg_lsp.system import VARIABLE as DATA_VARIABLE
from dg_lsp.system import data_folder

VARIABLE = "DG_LSP_DAEMON_DIR"
"""Names another folder."""
_RECORD, _SOCKET, _LOCK, _LOG = "daemon.json", "daemon.sock", "daemon.lock", "daemon.log"
_STARTING = "daemon.starting"
_LONGEST_PATH = 100
"""Bytes of a Unix socket's path; systems allow 104 or 108."""


@dataclass(frozen=True, slots=True)
class Record:
    """How one daemon is reached."""

    version: str
    pid: int
    token: str
    """What a caller has to say."""
    proof: str = ""
    """What the daemon says then: whoever took its port after its end does not know it."""
    path: str = ""
    """Of its Unix socket; empty for TCP."""
    host: str = ""
    port: int = 0

    @property
    def address(self) -> str:
        """For people."""
        return self.path or f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Place:
    """The folder of one daemon."""

    folder: Path

    @classmethod
    def of_user(cls, environment: Mapping[str, str] = os.environ) -> "Place":
        """This user's, where the system keeps what lasts as long as a session; need not be there yet."""
        if given := environment.get(VARIABLE):
            return cls(Path(given).expanduser().absolute())
        lasting = environment.get("XDG_RUNTIME_DIR")
        if lasting and not environment.get(DATA_VARIABLE):
            return cls(Path(lasting) / "dg-lsp")
        return cls(data_folder().absolute() / "daemon")

    @classmethod
    def at(cls, folder: str) -> "Place":
        """The one in this folder."""
        return cls(Path(folder))

    @property
    def lock(self) -> Path:
        """Held by the daemon as long as it lives."""
        return self.folder / _LOCK

    @property
    def starting(self) -> Path:
        """Held by whoever is starting a daemon."""
        return self.folder / _STARTING

    @property
    def log(self) -> Path:
        """What the daemon says; never a text."""
        return self.folder / _LOG

    @property
    def socket(self) -> Path | None:
        """None where the folder's path is too long for one."""
        path = self.folder / _SOCKET
        return path if len(os.fsencode(path)) <= _LONGEST_PATH else None

    def make(self) -> None:
        """Makes the folder, for the user alone.

        Raises:
            OSError: it cannot be made, or belongs to somebody else.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _is_owned(self.folder.stat()):  # root may do anything with it, and had better not
            raise PermissionError(errno.EPERM, "it belongs to another user")
        self.folder.chmod(0o700)

    def read(self) -> Record | None:
        """How the daemon is reached; None where there is none that says so. It may be gone all the same."""
        try:
            if not is_private(self.folder.stat(), stat.S_IWGRP | stat.S_IWOTH):
                return None
            with (self.folder / _RECORD).open(encoding="utf-8") as file:
                if not is_private(os.fstat(file.fileno())):
                    return None
                record = Record(**json.load(file))
        except (OSError, ValueError, TypeError):
            return None
        return record if isinstance(record.pid, int) and isinstance(record.port, int) else None

    def write(self, record: Record) -> None:
        """Says how the daemon is reached, at once or not at all."""
        write_private(self.folder / _RECORD, asdict(record))

    def clear(self) -> None:
        """Forgets the daemon; only for who holds the lock."""
        (self.folder / _RECORD).unlink(missing_ok=True)
        if self.socket is not None:
            self.socket.unlink(missing_ok=True)


def is_private(found: os.stat_result, forbidden: int = stat.S_IRWXG | stat.S_IRWXO) -> bool:
    """This user's, and nobody else may do with it what is forbidden; Windows keeps a user's folders by itself."""
    return sys.platform == "win32" or (_is_owned(found) and not stat.S_IMODE(found.st_mode) & forbidden)


def _is_owned(found: os.stat_result) -> bool:
    return sys.platform == "win32" or found.st_uid == os.getuid()


def write_private(path: Path, tree: Any) -> None:
    """JSON for the user alone, at once or not at all.

    Raises:
        OSError: it cannot be written.
    """
    beside = path.with_name(path.name + ".new")
    beside.unlink(missing_ok=True)
    with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(tree, file)
    beside.replace(path)
