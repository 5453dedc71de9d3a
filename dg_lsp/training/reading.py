"""Wheels -> clean files with what tells copies apart, on several processes. Knows no tokens and no splits."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing import get_context

from dg_lsp.training.benchmarks import MAX_HITS, num_hits, read_hashes
from dg_lsp.training.corpus import SourceFile, decoded, is_code_path, refusal
from dg_lsp.training.near_duplicates import Signature, signature
from dg_lsp.training.wheels import STDLIB, Wheel, stdlib_sources, wheel_sources
from dg_lsp.training.words import Hashes, WordHashes, word_hashes


@dataclass(frozen=True, slots=True)
class Read:
    """A file that is worth learning from, and its MinHash signature."""

    file: SourceFile
    signature: Signature


class Reader:
    """Reads sources one after the other; `counts` learns why files were dropped."""

    def __init__(self, benchmark: Hashes) -> None:
        self.benchmark = benchmark
        self.known = WordHashes()
        self.counts: Counter[str] = Counter()

    def read(self, package: str, sources: Iterable[tuple[str, bytes]]) -> Iterator[Read]:
        """The files of one package that are worth learning from."""
        for path, raw in sources:
            self.counts["seen"] += 1
            if not is_code_path(path):
                self.counts["path"] += 1
            elif (text := decoded(raw)) is None:
                self.counts["encoding"] += 1
            elif reason := refusal(text):
                self.counts[reason] += 1
            elif num_hits(words := word_hashes(text, self.known), self.benchmark) > MAX_HITS:
                self.counts["benchmark runs"] += 1
            else:
                yield Read(SourceFile(package, path, text), signature(words))


def _read_wheel(wheel: Wheel) -> tuple[list[Read], Counter[str]]:
    reader = Reader(read_hashes())
    return list(reader.read(wheel.package, wheel_sources(wheel.path))), reader.counts


def read_sources(wheels: list[Wheel], counts: Counter[str], processes: int = 0) -> list[Read]:
    """Every file of the wheels and of the standard library that is worth learning from; 0: a process for each core."""
    found: list[Read] = []
    with ExitStack() as stack:
        results: Iterable[tuple[list[Read], Counter[str]]] = map(_read_wheel, wheels)
        if processes != 1:
            # spawned: a fork would copy the threads of whatever torch started
            results = stack.enter_context(get_context("spawn").Pool(processes or os.cpu_count())).imap(
                _read_wheel, wheels
            )
        for files, reasons in results:
            found += files
            counts.update(reasons)
    reader = Reader(read_hashes())
    found += reader.read(STDLIB, stdlib_sources())
    counts.update(reader.counts)
    return found
