"""Keeps the first of every group of files that are one file: equal, nearly equal, or made of lines seen before.

Knows text and signatures, no packages. MinHash finds two versions of a file; lines find what was put together from
several files, which no signature of a whole file shows.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable

from dg_lsp.training.corpus import SourceFile
from dg_lsp.training.near_duplicates import NearDuplicates
from dg_lsp.training.reading import Read

MAX_REPEATED = 0.5  # share of a file's distinct lines that were seen before
MIN_LINE_KEY = 12  # characters; shorter lines ("else:", "return x") say nothing about copying


def line_keys(text: str) -> set[int]:
    """Hashes of the distinct lines that are long enough to tell a copy from a coincidence."""
    lines = (" ".join(line.split()) for line in text.split("\n"))
    return {hash(line) for line in lines if len(line) >= MIN_LINE_KEY}


def deduplicate(files: Iterable[Read], counts: Counter[str]) -> list[SourceFile]:
    """The files to keep, in order; `counts` learns what was dropped."""
    exact: set[bytes] = set()
    seen: set[int] = set()
    near = NearDuplicates()
    kept = []
    for read in files:
        digest = hashlib.blake2b(read.file.text.encode()).digest()
        keys = line_keys(read.file.text)
        if digest in exact:
            counts["exact duplicate"] += 1
        elif near.is_copy(read.signature):
            counts["near duplicate"] += 1
        elif len(keys & seen) > MAX_REPEATED * len(keys):
            counts["repeated lines"] += 1
        else:
            exact.add(digest)
            seen |= keys
            kept.append(read.file)
    return kept
