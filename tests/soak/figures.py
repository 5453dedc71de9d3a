"""What every campaign counts, and the one way to run a campaign."""

import math
import tempfile
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path
from statistics import median

FAILURES = ("crashes", "lost", "crossed", "unexpected")
NUM_EXAMPLES, NUM_CHARS = 10, 5000
"""Failures that are described, and the length of a description: the stacks of all threads."""
MAX_GROWTH = 0.05
"""Of the memory of a process in its second half, once there were `NUM_WARM` messages."""
NUM_WARM = 20_000


class Figures:
    """Counts, examples of failures and memory of one run. Any thread may call."""

    def __init__(self, seconds=math.inf, most=math.inf):
        self.start = time.monotonic()
        self.seconds = seconds
        self.most = most
        self.counts = Counter()
        self.examples = []
        self._sizes = defaultdict(list)
        self._peak = 0
        self._lock = threading.Lock()

    def add(self, kind, what="", number=1):
        """Counts something; `what` describes a failure."""
        with self._lock:
            self.counts[kind] += number
            if what and len(self.examples) < NUM_EXAMPLES:
                self.examples.append(f"{kind}: {what[:NUM_CHARS]}")

    def has_ended(self, kind="messages", share=1.0):
        """Whether the time is over, or this share of the messages was counted as this kind."""
        return self.counts[kind] >= share * self.most or time.monotonic() > self.start + self.seconds

    def limit(self, share):
        """A function that returns whether a part of the campaign with this share has ended; the part begins now."""
        end = time.monotonic() + share * self.seconds
        most = self.counts["messages"] + share * self.most
        return lambda: self.counts["messages"] >= most or time.monotonic() > end

    def sample(self, size, process=""):
        """Records resident memory in bytes; that of a named process must not grow."""
        self._peak = max(self._peak, size)
        if process:
            self._sizes[process].append(size)

    def result(self):
        """The counts, the peak of memory in MiB, and the examples."""
        for process, sizes in self._sizes.items():
            if self.counts["messages"] > NUM_WARM and (grown := growth(sizes)) > MAX_GROWTH:
                self.add("unexpected", f"{process}: memory grew by {grown:.1%} in the second half")
        return {
            "seconds": round(time.monotonic() - self.start),
            **dict.fromkeys(("messages", *FAILURES), 0),
            **self.counts,
            "peak_mib": self._peak >> 20,
            "examples": self.examples,
        }


def growth(sizes):
    """Memory in the last quarter of the samples by that in the quarter before, less 1.

    Medians are compared: single samples differ by what a process needs for a moment.
    """
    quarter = len(sizes) // 4
    if quarter == 0:
        return 0.0
    return median(sizes[-quarter:]) / median(sizes[-2 * quarter : -quarter]) - 1


def run(campaign, seed, seconds=math.inf, most=math.inf):
    """Runs `campaign(figures, folder, seed)` for some seconds or a number of messages; returns the figures."""
    figures = Figures(seconds, most)
    with tempfile.TemporaryDirectory(prefix="dg-soak-", ignore_cleanup_errors=True) as folder:
        campaign(figures, Path(folder), seed)
    return figures.result()
