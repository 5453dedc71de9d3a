"""What the models of one process share: memory, which is counted for one model at a time, and the processor or GPU."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

LONGEST_WAIT = 0.1
"""Seconds after which a waiting request looks again whether it was cancelled or is overdue."""


class SharedDevice:
    """Models are opened one at a time, and an urgent request of one model pauses the others. Any thread may call.

    Typing does not wait for a rewrite by another model: the rewrite pauses between two steps, as it does in the queue
    of its own model. Models of other processes are not included.
    """

    def __init__(self) -> None:
        self.opening = threading.Lock()
        """Held while a model is opened: two at once would count the same memory as free."""
        self._running: Counter[int] = Counter()
        """Requests that run now, by priority, of all models."""
        self._changed = threading.Condition()

    @contextmanager
    def running(self, priority: int) -> Iterator[None]:
        """Counts a request of this priority while it runs, pauses included."""
        with self._changed:
            self._running[priority] += 1
        try:
            yield
        finally:
            with self._changed:
                self._running[priority] -= 1
                self._changed.notify_all()

    def wait(self, priority: int) -> float:
        """Waits once while a more urgent request of another model runs; returns the seconds, 0 where none runs."""
        with self._changed:
            if not any(number and other < priority for other, number in self._running.items()):
                return 0.0
            began = time.monotonic()
            self._changed.wait(LONGEST_WAIT)
            return time.monotonic() - began or LONGEST_WAIT

    def wake(self) -> None:
        """Ends the present waits: a queue has changed."""
        with self._changed:
            self._changed.notify_all()
