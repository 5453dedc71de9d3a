"""What happens while a text is typed beside a model. Times are virtual milliseconds since the buffer stood ready."""

from dataclasses import dataclass

from dg_lsp.bench.replay.accept import Level
from dg_lsp.bench.replay.asking import CANCELLED
from dg_lsp.metrics.attempt import Attempt


@dataclass(frozen=True, slots=True)
class Typed:
    """One key pressed by hand."""

    key: str
    at_ms: float
    finishes: str | None = None
    """The site whose item has been typed to its end by this key."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, answered or cancelled."""

    attempt: Attempt
    is_displayed: bool
    """The item came on the screen; it does not where an older one stays."""
    is_line_finished: bool
    """Nothing is missing of the line: whatever is shown here is wrong."""
    takes_back: bool | None
    """It begins otherwise than the last item, which what was typed since still matches; None without such an item."""

    @property
    def is_cancelled(self) -> bool:
        """The buffer changed before the answer was there."""
        return self.attempt.rejection == CANCELLED


@dataclass(frozen=True, slots=True)
class Accepted:
    """One item taken, wholly or in part."""

    site: str
    """Of the request that brought it."""
    text: str
    level: Level
    presses: int
    num_keys: int
    """Keys that it stands for."""
    at_ms: float


Event = Typed | Asked | Accepted
