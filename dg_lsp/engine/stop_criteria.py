"""When a draft says enough, whatever plan makes it; and how much of it is fit to be shown."""

import math
import time
from dataclasses import dataclass, replace

import numpy as np

from dg_lsp.canvas.infill import GAP_LENGTHS, MIN_SUFFIX
from dg_lsp.canvas.layout import OPEN, Layout, TokenIds, among, token_ids
from dg_lsp.canvas.spec import ModelSpec, PromptFormat
from dg_lsp.canvas.tokenizer import Tokenizer
from dg_lsp.context.document import Cursor, allowed_lines
from dg_lsp.diffusion.denoiser import Floats
from dg_lsp.diffusion.step import Step
from dg_lsp.engine.request import DecoderName, FillRequest
from dg_lsp.errors import RequestError
from dg_lsp.postprocess.text_edits import cut_loops, is_repetitive
from dg_lsp.settings import FillSettings


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """Settled tokens of one candidate, the end token left out."""

    ids: TokenIds
    confidence: Floats
    """Probability of each token when it was committed, that of the end token included."""
    is_ended: bool
    steps: int
    """Forward passes that it took."""
    join: float = 0.0
    """How well what stands frozen after it follows from it, mean log probability in nats; 0 where nothing does."""

    @classmethod
    def empty(cls) -> "Draft":
        """Nothing yet."""
        return cls(token_ids([]), np.empty(0, np.float32), is_ended=False, steps=0)

    def grow(self, ids: TokenIds, confidence: Floats, end_ids: TokenIds) -> "Draft":
        """This draft and committed tokens after it, up to the first end token."""
        ends = np.flatnonzero(among(ids, end_ids))
        length = int(ends[0]) if len(ends) else len(ids)
        return replace(
            self,
            ids=token_ids(np.concatenate([self.ids, ids[:length]])),
            confidence=np.concatenate([self.confidence, confidence[: length + bool(len(ends))]]),
            is_ended=bool(len(ends)),
        )

    def settle(self, step: Step, end_ids: TokenIds) -> "Draft":
        """This draft and what has settled of the canvas after it."""
        settled = slice(0, step.num_settled)
        grown = self.grow(step.canvas_ids[settled], step.confidence[settled], end_ids)
        return replace(grown, steps=self.steps + step.number)

    @property
    def score(self) -> float:
        """Mean log probability per token in nats, and that of the join."""
        if not len(self.confidence):
            return self.join
        return float(np.log(np.maximum(self.confidence, 1e-9)).mean()) + self.join

    @property
    def tokens_per_forward(self) -> float:
        """Tokens, the end token included, per forward pass."""
        return len(self.confidence) / self.steps if self.steps else 0.0


MIN_RACE = 2
"""Canvases of a race for one candidate."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one request."""

    canvas_length: int
    """Tokens of a canvas; 0 for a plan without one."""
    max_tokens: int
    max_lines: int | None
    num_canvases: int = 1
    """Raced in one batch."""
    deadline: float = math.inf
    """`time.monotonic` seconds at which what is there has to do."""
    patience: float = math.inf
    """`time.monotonic` seconds from which on whole lines are enough."""

    def is_over(self) -> bool:
        """The deadline has passed."""
        return time.monotonic() >= self.deadline

    def is_patient(self) -> bool:
        """A fill of whole lines may still go on."""
        return time.monotonic() < self.patience


def limits_of(
    request: FillRequest,
    settings: FillSettings,
    spec: ModelSpec,
    plan: DecoderName,
    deadline: float | None,
    layout: Layout = OPEN,
) -> Limits:
    """What the request says, else the settings, else the place and the model.

    `deadline`, in `time.monotonic` seconds, is for a request that came earlier; None counts from now. Patience counts
    from the same moment: who set no deadline (`math.inf`) is in no hurry. `layout` says what the canvas holds beside
    the fill.

    Raises:
        RequestError: the canvas is longer than the model knows, or has no room for a fill.
    """
    seconds = (request.deadline_ms or settings.deadline_ms) / 1e3
    if deadline is None:
        deadline = time.monotonic() + seconds
    early_stop_ms = settings.early_stop_ms if request.early_stop_ms is None else request.early_stop_ms
    max_lines = request.max_lines
    if max_lines is None:
        max_lines = allowed_lines(Cursor.at(request.snapshot.text, request.offset))
    return Limits(
        canvas_length=canvas_length(settings.canvas_length, spec, max_lines, layout) if plan.needs_canvas else 0,
        max_tokens=request.max_tokens or settings.max_tokens,
        max_lines=max_lines,
        num_canvases=max(request.num_candidates, MIN_RACE) if plan is DecoderName.RACE else 1,
        deadline=deadline,
        patience=deadline - seconds + early_stop_ms / 1e3 if early_stop_ms else math.inf,
    )


def canvas_length(wanted: int, spec: ModelSpec, max_lines: int | None, layout: Layout = OPEN) -> int:
    """Tokens of a canvas: what is wanted, or with 0 the model's shortest that holds so many lines and what is frozen.

    Raises:
        RequestError: it is longer than the model knows, or has no room for a fill.
    """
    if wanted > spec.longest_block:
        raise RequestError(
            f"canvas length {wanted} is more than {spec.name} was trained for; choose at most {spec.longest_block}"
        )
    num_frozen = len(layout.head_ids) + min(MIN_SUFFIX, len(layout.tail_ids))
    if 0 < wanted <= num_frozen:
        raise RequestError(
            f"canvas length {wanted} has no room beside {num_frozen} tokens that are known; choose at least"
            f" {num_frozen + 4}"
        )
    # what is frozen around a hole makes a short canvas shorter; an open one goes on in the next
    shortest = 16 if num_frozen else 8
    least = num_frozen + (shortest if max_lines == 1 else 32)
    if spec.prompt_format is PromptFormat.PINNED:
        least = num_frozen + (spec.gap_lengths or GAP_LENGTHS)[-1]
    return wanted or min((n for n in spec.canvas_lengths if n >= least), default=spec.longest_block)


class StopCriteria:
    """One request's rule."""

    def __init__(self, tokenizer: Tokenizer, limits: Limits, stop: str = "") -> None:
        """A line that begins with `stop`, unless empty, is no part of the fill."""
        self._tokenizer = tokenizer
        self._limits = limits
        self._stop = stop

    def is_met(self, draft: Draft) -> bool:
        """The fill has ended, has the lines that may be shown, or whole ones and took long, or goes in circles."""
        if draft.is_ended or len(draft.ids) >= self._limits.max_tokens:
            return True
        text = self._tokenizer.decode(draft.ids).decode("utf-8", "replace")
        return meets_stop_criteria(text, self._limits) or self._stop_at(text) is not None

    def fill(self, draft: Draft) -> bytes:
        """What may be judged of the draft: a last line that was broken off is left out where whole ones precede it."""
        fill = self._tokenizer.decode(draft.ids)
        end = self._stop_at(fill.decode("utf-8", "surrogateescape"))
        if end is not None:
            return fill.decode("utf-8", "surrogateescape")[:end].encode("utf-8", "surrogateescape")
        whole = fill[: fill.rfind(b"\n") + 1]
        if draft.is_ended or not whole.strip() or _loops(fill.decode("utf-8", "replace")):
            return fill
        return whole

    def num_shown(self, ids: TokenIds) -> int:
        """How many of a fill's tokens are on the lines that may be shown; the line end after them is none of these."""
        if self._limits.max_lines is None:
            return len(ids)
        num_ends = 0
        for i in range(len(ids)):
            text = self._tokenizer.decode(ids[i : i + 1])
            num_ends += text.count(b"\n")
            if num_ends >= self._limits.max_lines:
                return i + (not text.startswith(b"\n"))
        return len(ids)

    def _stop_at(self, text: str) -> int | None:
        """Where the fill ends because a line begins as a stop does."""
        if not self._stop:
            return None
        at = f"\n{text}".find(f"\n{self._stop}")
        return max(0, at - 1) if at >= 0 else None


def meets_stop_criteria(text: str, limits: Limits) -> bool:
    """It has the lines that may be shown, or whole ones and took long, or goes in circles."""
    if _loops(text):
        return True
    whole, line_end, _ = text.rpartition("\n")
    if not line_end:
        return False
    has_all = limits.max_lines is not None and text.count("\n") >= limits.max_lines
    return has_all or (bool(whole.strip()) and not limits.is_patient())


def _loops(text: str) -> bool:
    return is_repetitive(text) or cut_loops(text) != text


def confidence_of(ids: TokenIds, confidence: Floats, tokenizer: Tokenizer) -> float:
    """Probability from 0 to 1 that the first line is right.

    Args:
        ids: shape (N,), the fill without its end token.
        confidence: shape (N,) or (N + 1,): of each token when it was committed, and of the end token.
        tokenizer: tells where the first line with text in it ends.
    """
    length = _first_line(ids, tokenizer)
    probabilities = confidence[: length if length is not None else len(confidence)]
    return float(np.prod(np.clip(probabilities, 1e-9, 1.0), dtype=np.float64))


def _first_line(ids: TokenIds, tokenizer: Tokenizer) -> int | None:
    """Tokens up to the line end that follows the first text, that one included; None where there is none."""
    has_text = False
    for number in range(len(ids)):
        piece = tokenizer.decode(ids[number : number + 1])
        body, end, _ = piece.partition(b"\n") if has_text else piece.lstrip().partition(b"\n")
        has_text = has_text or bool(body.strip())
        if has_text and end:
            return number + 1
    return None
