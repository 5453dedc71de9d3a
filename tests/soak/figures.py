"""The figures that every campaign returns."""

import time
from statistics import median

FAILURES = ("crashes", "lost", "crossed", "unexpected")
NUM_EXAMPLES, NUM_CHARS = 10, 5000
"""Failures that are described, and the length of a description: the stacks of all threads."""
MAX_GROWTH = 0.05
"""Of a process in the second half of its messages."""


def figures_of(start, seed, messages, *, crashes=0, lost=0, crossed=0, unexpected=0, examples=(), **others):
    """Counts since `start`, in seconds of `time.monotonic`: `lost` and `crossed` are answers or edits."""
    return {
        "messages": messages,
        "seconds": round(time.monotonic() - start, 1),
        "seed": seed,
        "crashes": crashes,
        "lost": lost,
        "crossed": crossed,
        "unexpected": unexpected,
        **others,
        **({"examples": [*examples][:NUM_EXAMPLES]} if examples else {}),
    }


def growth(sizes):
    """Largest by smallest memory in the second half, less 1, of the medians of the quarters of that half.

    Single samples differ by what a process needs for a moment.
    """
    half = sizes[len(sizes) // 2 :]
    size = max(1, len(half) // 4)
    medians = [median(half[start : start + size]) for start in range(0, size * 4, size) if half[start:]]
    return round(max(medians) / min(medians) - 1, 4) if medians else 0.0
