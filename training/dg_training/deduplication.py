"""Duplicates among the files of the corpus.

MinHash finds two versions of one file; repeated lines find files that were assembled from several others.
"""

import functools
import hashlib
import re
from collections import Counter
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from datasketch import MinHash, MinHashLSH

from dg_training.store import CorpusFile

Hashes = npt.NDArray[np.uint64]
Signature = npt.NDArray[np.uint32]

WORD = re.compile(r"\w+")
FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, so that the hash of an n-gram depends on the order of its words
NUM_MINHASHES = 128
MINHASH_NGRAM = 5  # words
MIN_SIMILARITY = 0.7  # estimated Jaccard similarity from which two files are near duplicates
MAX_REPEATED_LINES = 0.5  # share of a file's distinct lines that are also in earlier files
MIN_LINE_CHARS = 12  # shorter lines ("else:", "return x") are no evidence of copying
NEW_MINHASH = functools.partial(MinHash, NUM_MINHASHES, scheme="affine32", hashfunc=int)
PERMUTATIONS = NEW_MINHASH().permutations


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
    signature = NEW_MINHASH(permutations=PERMUTATIONS)
    signature.update_batch(np.unique(ngram_hashes(words, min(MINHASH_NGRAM, max(1, len(words)))) >> np.uint64(32)))
    return np.asarray(signature.hashvalues, np.uint32)


def deduplicate(files: Iterable[tuple[CorpusFile, Signature]], counts: Counter[str]) -> list[CorpusFile]:
    """The first file of each group of duplicates; `counts` gets the reasons of the others."""
    kept: list[CorpusFile] = []
    digests: set[bytes] = set()
    known_lines: set[int] = set()
    index, signatures = MinHashLSH(threshold=MIN_SIMILARITY, num_perm=NUM_MINHASHES), list[Signature]()
    for file, signature in files:
        digest = hashlib.blake2b(file.text.encode()).digest()
        if digest in digests:
            counts["exact duplicate"] += 1
            continue
        entry = NEW_MINHASH(hashvalues=signature, permutations=PERMUTATIONS)
        if any(np.mean(signatures[i] == signature) >= MIN_SIMILARITY for i in index.query(entry)):
            counts["near duplicate"] += 1
            continue
        index.insert(len(signatures), entry)
        signatures.append(signature)
        lines = {hash(line) for text in file.text.split("\n") if len(line := " ".join(text.split())) >= MIN_LINE_CHARS}
        if len(lines & known_lines) > MAX_REPEATED_LINES * len(lines):
            counts["repeated lines"] += 1
            continue
        digests.add(digest)
        known_lines |= lines
        kept.append(file)
    return kept
