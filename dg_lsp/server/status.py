"""What the user sees of a session: its status, each canvas, and why a completion is not shown, as one sentence."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

from dg_lsp.context.exclusion import Cause, Eligibility
from dg_lsp.engine.engine import Engine
from dg_lsp.engine.request import Cell, FillResult, Frame
from dg_lsp.postprocess.validate import Reason, Rejection
from dg_lsp.settings import CompletionSettings


class State(StrEnum):
    """Whether the server offers completions. The reasons against a document are named as in `Cause`."""

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
        facts |= {"rewriteModel": self.rewrite_model} if self.rewrite_model else {}
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


def denoising(frame: Frame, uri: str) -> dict[str, Any]:
    """The canvas after a pass for a document, as the parameters of `dg-lsp/denoising`."""
    return {"uri": uri, "block": frame.block, "step": frame.step, "cells": [*map(_cell, frame.cells)]}


def _cell(cell: Cell) -> dict[str, Any]:
    confidence = round(cell.confidence, 3)
    drawn = {"text": cell.text, "confidence": confidence, "isCommitted": cell.is_committed, "isEnd": cell.is_end}
    return {**drawn, "isFrozen": True} if cell.is_frozen else drawn


class Visibility(StrEnum):
    """The outcome of a completion that was requested from the model."""

    SHOWN = "shown"
    HIDDEN = "hidden"  # improbable, or of a kind that is shown only on request
    REFUSED = "refused"  # by a check
    UNFINISHED = "deadline"
    NO_MODEL = "no-model"  # it is loading, or could not be opened or reached


@dataclass(frozen=True, slots=True)
class Explanation:
    """The outcome at one position."""

    outcome: Visibility | Cause
    sentence: str
    text: str = ""  # of the completion, shown or not
    milliseconds: float = 0.0  # of the model

    @classmethod
    def of(cls, eligibility: Eligibility) -> Self | None:
        """Why the model is not asked; None where it is."""
        return None if eligibility.cause is None else cls(eligibility.cause, eligibility.sentence)


def explain(result: FillResult, settings: CompletionSettings, engine: Engine) -> Explanation:
    """What became of an automatic request with this result."""
    spent = result.timings.total
    if result.candidates:
        best = result.candidates[0]
        what = "probable beginning of an improbable completion" if best.is_beginning else "completion"
        sentence = f"The {what} is shown: {_percent(best.confidence)} probable, after {spent:.0f} ms."
        return Explanation(Visibility.SHOWN, sentence, best.text, spent)
    if result.is_unfinished:
        late = f"nothing was stable after {settings.deadline_ms:.0f} ms (completion.deadline_ms)"
        sentence = f"Too slow with {engine.spec.name}: {late}."
        return Explanation(Visibility.UNFINISHED, sentence, milliseconds=spent)
    hidden = next(iter(result.hidden), None)
    if hidden is not None:
        if hidden.fault is None:
            limit = f"below {_percent(settings.min_confidence)} (completion.min_confidence)"
            sentence = f"The completion is hidden: {_percent(hidden.confidence)} probable, {limit}."
        else:
            sentence = f"The completion is hidden unless you request it: it {hidden.fault.problem}."
        return Explanation(Visibility.HIDDEN, sentence, hidden.text, spent)
    rejection = next(iter(result.rejections), Rejection(Reason.EMPTY))
    verdict = "The completion is refused: it" if rejection.text.strip() else "There is no completion: the result"
    return Explanation(Visibility.REFUSED, f"{verdict} {rejection.reason.problem}.", rejection.text, spent)


def _percent(share: float) -> str:
    """Below 10 % with three digits: 7.96 % must not be shown as 8 %, the usual limit."""
    return f"{100 * share:.3g} %" if share < 0.1 else f"{100 * share:.0f} %"
