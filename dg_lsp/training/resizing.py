"""Canvases of a wrong length: slots that stand for two tokens, and slots too many (DreamOn, arXiv 2602.01326).

A canvas then holds all that is left of a middle and no end token: where its length is right, the fill ends with it.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dg_lsp.training.vocabulary import DELETE, EXPAND

Int = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Resized:
    """truth (L,): what each slot should become; the first `content` of them are no deletions."""

    truth: Int
    content: int


def resized_truth(rest: Int, length: int, rng: np.random.Generator) -> Resized | None:
    """`rest`, shape (N,), in `length` slots; None where even pairs are too long.

    As many pairs of neighbours as must become one slot each, and sometimes more; slots that are left are deleted.
    """
    num = len(rest)
    needed = max(0, num - length)
    if not num or needed > num // 2:
        return None
    num_pairs = needed + (int(rng.integers(num // 2 - needed + 1)) if rng.random() < 0.5 else 0)
    starts = _apart(num, num_pairs, rng)
    truth = np.array(rest, np.int32)
    truth[starts] = EXPAND
    truth = np.delete(truth, starts + 1)
    return Resized(np.concatenate([truth, np.full(length - len(truth), DELETE, np.int32)]), len(truth))


def _apart(num: int, num_pairs: int, rng: np.random.Generator) -> npt.NDArray[np.intp]:
    """First places of pairs that do not overlap, all choices equally likely."""
    chosen = np.sort(rng.choice(num - num_pairs, num_pairs, replace=False)) if num_pairs else np.zeros(0, np.intp)
    return chosen + np.arange(num_pairs)
