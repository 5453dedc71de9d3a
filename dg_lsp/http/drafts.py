"""An answer while it is made: whole drafts that replace each other, or what is settled and only grows."""

from typing import Protocol

from dg_lsp.engine.result import Frame


class Saying(Protocol):
    """What of each frame of a request, in order, goes to the client."""

    def of(self, frame: Frame) -> str:
        """A chunk's text; empty is not worth one."""
        ...

    def last(self, text: str) -> tuple[str, str]:
        """What is said before the reason of the end, and together with it, where this is the whole answer."""
        ...


class Drafts:
    """Each chunk is all there is: what is settled, and behind it what the model thinks at the moment."""

    def __init__(self) -> None:
        self._block = 0
        self._before = ""
        self._settled = ""

    def of(self, frame: Frame) -> str:
        """See `Saying.of`."""
        if frame.block != self._block:
            # a canvas is left when all of it is settled
            self._block, self._before = frame.block, self._settled
        self._settled = frame.settled_text
        shown = self._before
        for cell in frame.cells:
            if cell.is_end:
                break
            shown += cell.text
        return shown

    def last(self, text: str) -> tuple[str, str]:
        """See `Saying.last`."""
        return "", text


class Settled:
    """Each chunk goes on where the one before it ended; together they are the answer."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = tuple(filter(None, stops))
        self._num_held = max(map(len, self._stops), default=1) - 1
        self._num_said = 0
        self._coming = ""

    def of(self, frame: Frame) -> str:
        """See `Saying.of`. One frame late: of the last one, the answer may leave something out."""
        sure, self._coming = self._coming, frame.settled_text
        if any(stop in sure for stop in self._stops):
            return ""
        # a character that is cut apart will be another, and what may begin a stop may not be said
        sure = sure.rstrip("\ufffd")
        return self._grown(sure[: max(0, len(sure) - self._num_held)])

    def last(self, text: str) -> tuple[str, str]:
        """See `Saying.last`."""
        return self._grown(text), ""

    def _grown(self, text: str) -> str:
        new = text[self._num_said :]
        self._num_said = max(self._num_said, len(text))
        return new
