"""Texts as hashes of runs of words, the same in every process and on every machine. Knows no files or benchmarks."""

import hashlib
import re

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint64]

WORD = re.compile(r"\w+")
FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd: the order of the words in a run counts
MAX_KNOWN = 2_000_000  # words remembered; more would be numbers and names that never come back


class WordHashes(dict[str, int]):
    """The 8-byte hash of every word met so far."""

    def __missing__(self, word: str) -> int:
        value = int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")
        if len(self) < MAX_KNOWN:
            self[word] = value
        return value


def word_hashes(text: str, known: WordHashes) -> Hashes:
    """(num_words,): one hash for each word, whatever its case; punctuation and blanks are no words."""
    words = WORD.findall(text.lower())
    return np.fromiter(map(known.__getitem__, words), np.uint64, len(words))


def runs(words: Hashes, length: int) -> Hashes:
    """(num_words - length + 1,): one hash for each run of `length` words in a row; empty where there are fewer."""
    num = len(words) - length + 1
    if num < 1:
        return np.zeros(0, np.uint64)
    total = np.zeros(num, np.uint64)
    for i in range(length):
        total = total * FACTOR + words[i : i + num]
    return total
