"""What the client displays of a session: its status, and each canvas while a completion is computed."""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from dg_lsp.engine.request import Cell, Frame
from dg_lsp.engine.scheduler import OnFrame


class State(StrEnum):
    """Whether the server offers completions."""

    LOADING = "loading"
    READY = "ready"
    EXCLUDED = "excluded"  # not in the active document
    UNSUPPORTED = "unsupported"  # not in the language of the active document, which the model does not know
    ERROR = "error"


_KINDS = {State.EXCLUDED: "Inactive", State.UNSUPPORTED: "Inactive", State.ERROR: "Error"}
"""What clients of Copilot's server display; `Normal` for the other states."""


@dataclass(slots=True)
class Status:
    """The status that the client displays. Each change is sent once."""

    send: Callable[[str, Any], None]
    is_enabled: bool = False  # the client displays it: such clients send `editorInfo`
    state: State = State.LOADING
    message: str = ""
    model: str = ""
    rewrite_model: str = ""  # of rewrites and chats, once it is loaded beside the other one
    last_ms: float | None = None  # duration of the last request in milliseconds
    numbers: Callable[[], Mapping[str, Any]] = dict  # counts of the session, and useful edits of the day
    _num_running: int = 0
    _last_sent: dict[str, Any] = field(default_factory=dict)

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Reports the server as busy inside, and measures how long it takes if nothing is raised."""
        start = time.monotonic()
        self._num_running += 1
        self.update()
        try:
            yield
            self.last_ms = round(1e3 * (time.monotonic() - start), 1)
        finally:
            self._num_running -= 1
            self.update()

    def update(self, **changes: Any) -> None:
        """Sets the fields given, and sends the status if it differs from the last one sent."""
        for name, value in changes.items():
            setattr(self, name, value)
        if not self.is_enabled:
            return
        facts = {"state": self.state.value, "model": self.model, "lastMs": self.last_ms}
        if self.rewrite_model:
            facts["rewriteModel"] = self.rewrite_model
        status = {
            "busy": self._num_running > 0 or self.state is State.LOADING,
            "message": self.message,
            "kind": _KINDS.get(self.state, "Normal"),
            "dgLsp": {**facts, **self.numbers()},
        }
        if status != self._last_sent:
            self._last_sent = status
            self.send("didChangeStatus", status)

    def explain(self, sentence: str) -> None:
        """Sets the message of a server that is ready: the reason why a requested completion is missing, or nothing."""
        if self.state is State.READY:
            self.update(message=sentence)


def canvas_sender(notify: Callable[[str, Any], None], uri: str) -> OnFrame:
    """A function for the model's thread, which sends `dg-lsp/denoising` after each pass for a document."""
    loop = asyncio.get_running_loop()

    def send(frame: Frame) -> None:
        params = {"uri": uri, "block": frame.block, "step": frame.step, "cells": [*map(_cell, frame.cells)]}
        loop.call_soon_threadsafe(notify, "dg-lsp/denoising", params)

    return send


def _cell(cell: Cell) -> dict[str, Any]:
    confidence = round(cell.confidence, 3)
    drawn = {"text": cell.text, "confidence": confidence, "isCommitted": cell.is_committed, "isEnd": cell.is_end}
    return {**drawn, "isFrozen": True} if cell.is_frozen else drawn
