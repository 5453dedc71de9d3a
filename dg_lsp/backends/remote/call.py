"""One request on its way: filled in by the loop that reads it, looked at by the engine's thread."""

import threading
from collections.abc import Iterable
from typing import Any

from dg_lsp.backends.remote.dialects import Piece
from dg_lsp.context.asking import Said


class Call:
    """What was said so far, and whether more may come."""

    def __init__(self, num_answers: int) -> None:
        self._num_answers = num_answers
        self._texts: dict[int, list[str]] = {}
        self._ended: set[int] = set()
        self._full: set[int] = set()
        self._model = ""
        self._costs: dict[str, int] = {}
        self._error: Exception | None = None
        self._is_over = False
        self._has_news = False
        self._changed = threading.Condition()

    def add(self, pieces: Iterable[Piece], costs: dict[str, int], model: str) -> None:
        """More of it."""
        with self._changed:
            for piece in pieces:
                if piece.index >= self._num_answers:
                    continue
                self._texts.setdefault(piece.index, []).append(piece.text)
                if piece.is_ended:
                    self._ended.add(piece.index)
                if piece.is_full:
                    self._full.add(piece.index)
            self._costs |= costs
            self._model = model or self._model
            self._has_news = True
            self._changed.notify()

    def end(self, error: Exception | None = None) -> None:
        """Nothing more comes."""
        with self._changed:
            self._error = error
            self._is_over = True
            self._has_news = True
            self._changed.notify()

    @property
    def has_begun(self) -> bool:
        """Some text has come: repeating the request would say it again."""
        return bool(self._texts)

    @property
    def is_whole(self) -> bool:
        """All answers have ended, or have all the tokens that they may have."""
        return len(self._ended | self._full) == self._num_answers

    def wait(self, seconds: float) -> tuple[Said, bool]:
        """What was said by the time that there is news, at the latest after so many seconds; and whether it is over.

        Raises:
            RemoteError: what went wrong.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._has_news, seconds)
            self._has_news = False
            if self._error is not None:
                raise self._error
            return self._said(), self._is_over

    def _said(self) -> Said:
        costs: dict[str, Any] = self._costs
        texts = tuple("".join(self._texts[index]) for index in sorted(self._texts))
        is_all = len(texts) == self._num_answers or self._is_over
        is_ended = bool(texts) and is_all and self._ended == set(self._texts)
        return Said(texts, is_ended, self._model, **costs)
