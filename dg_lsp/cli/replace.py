"""Replacing a file's content at once: whoever looks sees all of the old or all of the new."""

import contextlib
import os
import tempfile
from pathlib import Path

from dg_lsp.errors import InputFileError


def replace_file(path: Path, old: bytes, new: bytes) -> None:
    """Writes a temporary file beside `path`, flushes it to the disk and renames it over `path`.

    Mode, owner and extended attributes are kept as far as this user may set them; a hard link to the old file keeps
    the old content. `path` must not be a symbolic link: the link itself would be replaced.

    Raises:
        InputFileError: the file no longer holds `old`.
        OSError: the directory or the disk refused; the file is as it was.
    """
    status = path.stat()
    number, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:100]}.", suffix=".tmp")
    temporary = Path(name)
    try:
        with os.fdopen(number, "wb") as file:
            file.write(new)
            file.flush()
            _copy_rights(path, temporary, status)
            os.fsync(file.fileno())
        if path.read_bytes() != old:
            raise InputFileError(f"{path} changed while it was being filled: nothing was written; run it again")
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    _sync_directory(path.parent)


def _copy_rights(source: Path, target: Path, status: os.stat_result) -> None:
    """Owner first: changing it clears the set-user-id bits."""
    if hasattr(os, "chown"):
        with contextlib.suppress(OSError):
            os.chown(target, status.st_uid, status.st_gid)
    if hasattr(os, "listxattr"):
        with contextlib.suppress(OSError):
            for key in os.listxattr(source):
                os.setxattr(target, key, os.getxattr(source, key))
    target.chmod(status.st_mode & 0o7777)


def _sync_directory(directory: Path) -> None:
    """Makes the rename itself last; systems that cannot open a directory do it by themselves."""
    with contextlib.suppress(OSError):
        number = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
