"""How much trouble a server may make: repeats with a budget, and a pause after too much of it. Knows no server."""

import time
from collections.abc import Callable

FAILURES = 3
"""In a row, after which a server is left alone for a while."""
SHARE = 0.2
"""Repeats that one request earns: of many requests not more than so many are repeated."""
BURST = 5.0
"""Repeats saved up at most; what there is at the beginning."""

Clock = Callable[[], float]


class RetryBudget:
    """Repeats help against a hiccup; against an overload they make it worse."""

    def __init__(self) -> None:
        self._saved = BURST

    def earn(self) -> None:
        """For a request."""
        self._saved = min(BURST, self._saved + SHARE)

    def take(self) -> bool:
        """Whether one more repeat may be."""
        if self._saved < 1:
            return False
        self._saved -= 1
        return True


class Breaker:
    """Open after some failures in a row: then nobody asks until the pause is over, and the next request is the test."""

    def __init__(self, pause: float, clock: Clock = time.monotonic) -> None:
        """`pause` in seconds."""
        self._pause = pause
        self._clock = clock
        self._num_failures = 0
        self._until = 0.0
        self._why = ""

    def seconds_left(self) -> float:
        """Of the pause; 0 when the server may be asked."""
        return max(0.0, self._until - self._clock())

    @property
    def why(self) -> str:
        """What was wrong last."""
        return self._why

    def succeed(self) -> None:
        """It answered as it should."""
        self._num_failures = 0
        self._until = 0.0

    def fail(self, why: str, seconds: float = 0.0) -> None:
        """It did not, and wants to be left alone for so many seconds."""
        self._why = why
        self._num_failures += 1
        if self._num_failures >= FAILURES:
            seconds = max(seconds, self._pause)
        self._until = max(self._until, self._clock() + seconds)
