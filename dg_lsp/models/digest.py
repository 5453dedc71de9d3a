"""Checksums of files that do not fit into memory."""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

BLOCK = 1 << 20


def blocks(file: IO[bytes]) -> Iterator[bytes]:
    """The rest of a file, a megabyte at a time."""
    while block := file.read(BLOCK):
        yield block


def sha256_of(file: IO[bytes], look: Callable[[int], object] = lambda _: None) -> str:
    """Of what is left of the file; `look` is told how many bytes were just read."""
    found = hashlib.sha256()
    for block in blocks(file):
        found.update(block)
        look(len(block))
    return found.hexdigest()


def blob_id_of(path: Path) -> str:
    """git's checksum of a file's content, which a hub gives for small files."""
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
