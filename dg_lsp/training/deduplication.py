"""Finds duplicate files and benchmark text in the corpus, by hashes of word n-grams, MinHash and repeated lines.

MinHash finds two versions of one file. Repeated lines find files that were assembled from several others.
benchmarks.bin holds hashes of the benchmarks' n-grams, not their text; the command `benchmarks` writes it.
"""

import functools
import gzip
import hashlib
import json
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt
from datasketch import MinHash, MinHashLSH

Hashes = npt.NDArray[np.uint64]
Signature = npt.NDArray[np.uint32]

WORD = re.compile(r"\w+")
FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, so that the hash of an n-gram depends on the order of its words

NUM_MINHASHES = 128
MINHASH_NGRAM = 5  # words
MIN_SIMILARITY = 0.7  # estimated Jaccard similarity from which two files are near duplicates
MAX_REPEATED_LINES = 0.5  # share of a file's distinct lines that are also in earlier files
MIN_LINE_CHARS = 12  # shorter lines ("else:", "return x") are no evidence of copying

BENCHMARK_HASHES = Path(__file__).with_name("benchmarks.bin")
BENCHMARK_NGRAM = 10  # words
MIN_DISTINCT_NAMES = 4  # an n-gram with fewer names is a row of numbers or a bare loop
_HASH_FORMAT = np.dtype("<u8")

_EMPTY_MINHASH = MinHash(NUM_MINHASHES, scheme="affine32", hashfunc=int)


def word_hashes(text: str) -> Hashes:
    """Hash each word, ignoring case, punctuation and white space; the same in every process. Shape (num_words,)."""
    words = WORD.findall(text.lower())
    return np.fromiter(map(_word_hash, words), np.uint64, len(words))


@functools.lru_cache(maxsize=2_000_000)
def _word_hash(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")


def ngram_hashes(words: Hashes, length: int) -> Hashes:
    """Hash every n-gram of `length` words. Shape (max(0, num_words - length + 1),)."""
    num = max(0, len(words) - length + 1)
    total = np.zeros(num, np.uint64)
    for i in range(length if num else 0):
        total = total * FACTOR + words[i : i + num]
    return total


def minhash(words: Hashes) -> Signature:
    """MinHash signature of a text's word 5-grams. Shape (128,)."""
    found = _EMPTY_MINHASH.copy()
    found.update_batch(np.unique(ngram_hashes(words, min(MINHASH_NGRAM, max(1, len(words)))) >> np.uint64(32)))
    return np.asarray(found.hashvalues, np.uint32)


class Deduplicator:
    """Compares each file with all earlier ones."""

    def __init__(self) -> None:
        self._digests: set[bytes] = set()
        self._lines: set[int] = set()
        self._index = MinHashLSH(threshold=MIN_SIMILARITY, num_perm=NUM_MINHASHES)
        self._signatures: list[Signature] = []

    def rejection_reason(self, text: str, signature: Signature) -> str | None:
        """Why the file is a duplicate, or None. Later files are compared with it if the reason is None."""
        digest = hashlib.blake2b(text.encode()).digest()
        if digest in self._digests:
            return "exact duplicate"
        if self._is_near_duplicate(signature):
            return "near duplicate"
        lines = {hash(line) for line in map(_normalized, text.split("\n")) if len(line) >= MIN_LINE_CHARS}
        if len(lines & self._lines) > MAX_REPEATED_LINES * len(lines):
            return "repeated lines"
        self._digests.add(digest)
        self._lines |= lines
        return None

    def _is_near_duplicate(self, signature: Signature) -> bool:
        entry = MinHash(
            NUM_MINHASHES, scheme="affine32", hashvalues=signature, permutations=_EMPTY_MINHASH.permutations
        )
        if any(np.mean(self._signatures[i] == signature) >= MIN_SIMILARITY for i in self._index.query(entry)):
            return True
        self._index.insert(len(self._signatures), entry)
        self._signatures.append(signature)
        return False


def _normalized(line: str) -> str:
    return " ".join(line.split())


def read_benchmark(path: Path) -> list[str]:
    """Problems of a benchmark file: JSON or JSON lines, plain or gzip, in the format of HumanEval-Infilling or MBPP."""
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    text = raw.decode()
    rows = json.loads(text) if text.startswith("[") else [json.loads(line) for line in text.splitlines() if line]
    return [_problem(row) for row in rows]


def _problem(row: dict[str, str]) -> str:
    if "canonical_solution" in row:
        return row["prompt"] + row["canonical_solution"] + row.get("suffix", "")
    return "\n".join(row.get(key, "") for key in ("text", "prompt", "code"))


def benchmark_ngrams(problems: Iterable[str]) -> Hashes:
    """Ascending, distinct hashes of the problems' characteristic 10-grams."""
    found = [np.zeros(0, np.uint64)]
    for problem in problems:
        words = WORD.findall(problem.lower())
        hashes = ngram_hashes(word_hashes(problem), BENCHMARK_NGRAM)
        is_kept = [_is_characteristic(words[i : i + BENCHMARK_NGRAM]) for i in range(len(hashes))]
        found.append(hashes[np.array(is_kept, bool)])
    return np.unique(np.concatenate(found))


def _is_characteristic(words: list[str]) -> bool:
    return len({word for word in words if len(word) > 1 and not word.isdigit()}) >= MIN_DISTINCT_NAMES


def write_benchmark_hashes(hashes: Hashes, path: Path = BENCHMARK_HASHES) -> None:
    """Write the hashes as little-endian 64-bit integers."""
    path.write_bytes(hashes.astype(_HASH_FORMAT).tobytes())


def read_benchmark_hashes(path: Path = BENCHMARK_HASHES) -> Hashes:
    """Read the file that `write_benchmark_hashes` wrote."""
    return np.frombuffer(path.read_bytes(), _HASH_FORMAT).astype(np.uint64)


def num_benchmark_ngrams(words: Hashes, benchmark: Hashes) -> int:
    """Number of distinct 10-grams that a text, given as `word_hashes`, shares with the benchmarks."""
    hashes = np.unique(ngram_hashes(words, BENCHMARK_NGRAM))
    at = np.minimum(np.searchsorted(benchmark, hashes), len(benchmark) - 1)
    return int(np.count_nonzero(benchmark[at] == hashes)) if len(benchmark) else 0
