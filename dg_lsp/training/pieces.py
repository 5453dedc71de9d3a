"""A file in pieces that are small enough to be carried one by one, and whole again. Knows bytes only."""

import hashlib
from pathlib import Path

MAX_PIECE = 16 * 2**20  # bytes


class BrokenPiecesError(Exception):
    """Pieces are missing, or do not add up to the file that was split."""


def split(path: Path, max_piece: int = MAX_PIECE) -> list[Path]:
    """Writes `name.000`, `name.001`, ... and `name.sha256` beside `path`; returns what was written."""
    data = path.read_bytes()
    written = []
    for i, at in enumerate(range(0, len(data), max_piece)):
        piece = path.with_name(f"{path.name}.{i:03d}")
        piece.write_bytes(data[at : at + max_piece])
        written.append(piece)
    digest = path.with_name(f"{path.name}.sha256")
    digest.write_text(hashlib.sha256(data).hexdigest() + "\n")
    return [*written, digest]


def whole(path: Path) -> Path:
    """`path` itself, joined from its pieces first where only those are there.

    Raises:
        BrokenPiecesError: a piece is missing or changed.
        FileNotFoundError: neither the file nor pieces of it.
    """
    if path.exists():
        return path
    pieces = sorted(path.parent.glob(f"{path.name}.[0-9][0-9][0-9]"))
    digest = path.with_name(f"{path.name}.sha256")
    if not pieces or not digest.exists():
        raise FileNotFoundError(path)
    data = b"".join(piece.read_bytes() for piece in pieces)
    if hashlib.sha256(data).hexdigest() != digest.read_text().strip():
        raise BrokenPiecesError(f"the pieces of {path.name} do not add up: copy all of them again")
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(data)
    partial.replace(path)
    return path
