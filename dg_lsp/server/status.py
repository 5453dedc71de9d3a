"""What a status bar shows, as Copilot's clients know it: `didChangeStatus`, with more of ours beside it."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

METHOD = "didChangeStatus"


class State(StrEnum):
    """What the server can do right now."""

    LOADING = "loading"
    READY = "ready"
    EXCLUDED = "excluded"
    ERROR = "error"


_KINDS = {State.LOADING: "Normal", State.READY: "Normal", State.EXCLUDED: "Inactive", State.ERROR: "Error"}


@dataclass(slots=True)
class Status:
    """Tells the client what has changed, where it wants to know."""

    send: Callable[[str, Any], None]
    is_wanted: bool = False
    """The client said which editor it is, as those do that have a status bar for us."""
    state: State = State.LOADING
    message: str = ""
    model: str = ""
    last_ms: float | None = None
    """From the last request to its answer."""
    counts: Callable[[], dict[str, int]] = dict
    _num_running: int = 0
    _said: dict[str, Any] = field(default_factory=dict)

    @contextmanager
    def thinking(self) -> Iterator[None]:
        """Busy for as long, whoever else is; what comes to its end says how long it took."""
        began = time.monotonic()
        self._num_running += 1
        self.change()
        try:
            yield
            self.last_ms = round(1e3 * (time.monotonic() - began), 1)
        finally:
            self._num_running -= 1
            self.change()

    def change(self, **changes: Any) -> None:
        """Sets what is given; says all of it, unless that was the last thing said."""
        for name, value in changes.items():
            setattr(self, name, value)
        said = {
            "busy": self._num_running > 0 or self.state is State.LOADING,
            "message": self.message,
            "kind": _KINDS[self.state],
            "dgLsp": {"state": self.state.value, "model": self.model, "lastMs": self.last_ms, **self.counts()},
        }
        if self.is_wanted and said != self._said:
            self._said = said
            self.send(METHOD, said)
