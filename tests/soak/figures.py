"""The figures that every campaign returns."""

import time

FAILURES = ("crashes", "lost", "crossed", "unexpected")
NUM_EXAMPLES, NUM_CHARS = 10, 5000
"""Failures that are described, and the length of a description: the stacks of all threads."""


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
