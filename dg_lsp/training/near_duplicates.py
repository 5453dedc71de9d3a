"""Which files are nearly a file that was kept before: MinHash signatures in a locality-sensitive index.

Knows words, no lines, packages or paths.
"""

import numpy as np
import numpy.typing as npt
from datasketch import MinHash, MinHashLSH

from dg_lsp.training.words import Hashes, runs

Signature = npt.NDArray[np.uint32]

RUN_WORDS = 5
NUM_HASHES = 128
MIN_SHARED = 0.7  # estimated share of the runs of two files that both have; above: one file in two versions

_EMPTY = MinHash(NUM_HASHES, scheme="affine32", hashfunc=int)


def signature(words: Hashes) -> Signature:
    """(128,) uint32: equal places of two signatures estimate the share of the word runs their files share."""
    found = _EMPTY.copy()
    found.update_batch(np.unique(runs(words, min(RUN_WORDS, max(1, len(words)))) >> np.uint64(32)))
    return np.asarray(found.hashvalues, np.uint32)


class NearDuplicates:
    """The signatures of the files kept so far."""

    def __init__(self, min_shared: float = MIN_SHARED) -> None:
        self.min_shared = min_shared
        self._index = MinHashLSH(threshold=min_shared, num_perm=NUM_HASHES)
        self._kept: list[Signature] = []

    def is_copy(self, new: Signature) -> bool:
        """Whether a file like this one is known already; if not, it is known from now on."""
        entry = MinHash(NUM_HASHES, scheme="affine32", hashvalues=new, permutations=_EMPTY.permutations)
        if any(np.mean(self._kept[i] == new) >= self.min_shared for i in self._index.query(entry)):
            return True
        self._index.insert(len(self._kept), entry)
        self._kept.append(new)
        return False
