"""Interface of the decoders: what they take and return, the limits of a request, and when a fill is complete."""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

import numpy as np

from dg_lsp.canvas.layout import NOTHING, Canvas, Flags, TokenIds, among, token_ids
from dg_lsp.diffusion.denoiser import Floats
from dg_lsp.diffusion.samplers import Step
from dg_lsp.engine.request import Cell, Ending, Frame, Timings
from dg_lsp.postprocess.text_edits import cut_loops, is_repetitive

if TYPE_CHECKING:
    from dg_lsp.engine.decode_task import DecodeTask

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """Settled tokens of one candidate, the end token left out."""

    ids: TokenIds
    confidence: Floats  # probability of each token when it was committed, that of the end token included
    is_ended: bool = False
    join: float = 0.0  # mean log probability in nats of the frozen tokens after the fill; 0 where none are
    is_cut: bool = False  # it has ended, because further lines may not be shown

    def grow(self, ids: TokenIds, confidence: Floats, end_ids: tuple[int, ...]) -> "Draft":
        """This draft and committed tokens after it, up to the first end token."""
        # a scan of a list: numpy takes several times longer for so few tokens
        length = next((at for at, token in enumerate(ids.tolist()) if token in end_ids), len(ids))
        is_ended = length < len(ids)
        new_ids = ids[:length]
        new_confidence = confidence[: length + is_ended]
        if len(self.confidence):
            new_ids = np.concatenate([self.ids, new_ids])
            new_confidence = np.concatenate([self.confidence, new_confidence])
        return Draft(new_ids, new_confidence, is_ended)

    @property
    def is_empty(self) -> bool:
        """Neither a token nor an end is settled."""
        return not len(self.confidence)

    @property
    def score(self) -> float:
        """Mean log probability per token in nats, plus that of the join."""
        if self.is_empty:
            return self.join
        return float(np.log(np.maximum(self.confidence, 1e-9)).mean()) + self.join


EMPTY = Draft(NOTHING, np.empty(0, np.float32))


@dataclass(frozen=True, slots=True, eq=False)
class Progress:
    """The first candidate after one forward pass, or nothing between two pieces of a prompt: then it has no ids."""

    block: int
    """0 for the first canvas; a longer fill continues in further ones. Always 0 without canvases."""
    number: int  # passes so far, counted over the whole request
    draft: Draft  # tokens that do not change any more
    ids: TokenIds
    """Shape (N,): the canvas, or its gap where parts are frozen; without a canvas, the fill and the drafted tokens."""
    confidence: Floats  # shape (N,)
    committed: Flags | None = None  # shape (N,): see `Step.committed`; None: the tokens of the draft
    frozen: Flags | None = None  # shape (N,): tokens of the buffer between the gaps of one canvas; None: no token
    num_earlier: int = 0  # tokens of the draft that are from earlier canvases
    text: str = ""  # in place of tokens, from a server
    task: "DecodeTask | None" = None  # None between two pieces of a prompt, and from a server

    @classmethod
    def of(cls, block: int, number: int, step: Step, draft: Draft, num_earlier: int = 0) -> "Progress":
        """The canvas after a step."""
        return cls(block, number, draft, step.draft_ids, step.confidence, step.committed, num_earlier=num_earlier)

    def frame(self) -> Frame:
        """The canvas position by position, and the settled text, both from the cursor on; for any thread."""
        task = self.task
        if task is None:
            return Frame(self.block, self.number, (), self.text)
        earlier_ids = self.draft.ids[: self.num_earlier]
        num_hidden = max(0, len(task.layout.removed) - len(task.stop.decode(earlier_ids)))  # bytes of the canvas
        committed = self.committed
        if committed is None:
            committed = np.arange(len(self.ids)) < len(self.draft.confidence)
        frozen = np.zeros(len(self.ids), np.bool_) if self.frozen is None else self.frozen
        is_end = among(self.ids, token_ids(task.spec.end_ids))
        cells: list[Cell] = []
        for at in range(len(self.ids)):
            piece = task.stop.decode(self.ids[at : at + 1])
            if len(piece) > num_hidden or not num_hidden:
                shown = piece[num_hidden:].decode("utf-8", "replace")
                cells.append(
                    Cell(shown, float(self.confidence[at]), bool(committed[at]), bool(is_end[at]), bool(frozen[at]))
                )
            num_hidden = max(0, num_hidden - len(piece))
        thought, text = task.texts(self.draft.ids)
        return Frame(self.block, self.number, tuple(cells), text, task.texts(earlier_ids)[1], thought)


PROMPT_PIECE = Progress(0, 0, EMPTY, NOTHING, EMPTY.confidence)
"""Between two pieces of a prompt."""


class Steps(Generic[Result]):
    """Iterates over a generator, and keeps what it returns."""

    def __init__(self, generator: Generator[Progress, None, Result]) -> None:
        self._generator = generator
        self.result: Result  # once the iteration has ended

    def __iter__(self) -> Iterator[Progress]:
        self.result = yield from self._generator


class RequestCosts:
    """The seconds of one request by stage, and its passes."""

    def __init__(self) -> None:
        self.prompt = self.prefill = self.postprocess = self.paused = 0.0
        self.num_prefilled = 0  # prompt tokens that the slot lacked
        self.num_passes = 0  # those of the prompt left out
        self.num_blocks = 0  # canvases that were denoised
        self.canvas_tokens = 0  # tokens of these canvases
        self._start = time.perf_counter()

    @contextmanager
    def stage(self, name: Literal["prompt", "prefill", "postprocess", "paused"]) -> Iterator[None]:
        """Adds the time of the `with` block to this stage."""
        began = time.perf_counter()
        try:
            yield
        finally:
            setattr(self, name, getattr(self, name) + time.perf_counter() - began)

    def count_canvases(self, canvases: Sequence[Canvas]) -> None:
        """Counts canvases of which a pass has begun."""
        self.num_blocks += len(canvases)
        self.canvas_tokens += sum(len(canvas.canvas_ids) for canvas in canvases)

    def relay(self, generator: Generator[Progress, None, Result]) -> Generator[Progress, None, Result]:
        """The same steps; the time in which the caller holds one is not counted."""
        steps = Steps(generator)
        for step in steps:
            with self.stage("paused"):
                yield step
        return steps.result

    def timings(self) -> Timings:
        """Milliseconds so far; `denoise` is what neither prefill nor postprocess took."""
        total = time.perf_counter() - self._start - self.paused
        return Timings(
            prefill=1e3 * (self.prompt + self.prefill),
            denoise=1e3 * (total - self.prompt - self.prefill - self.postprocess),
            postprocess=1e3 * self.postprocess,
            total=1e3 * total,
            setup=1e3 * self.prompt,
        )


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one request."""

    canvas_length: int  # tokens of a canvas; 0 for a decoder without one
    max_tokens: int
    max_lines: int | None
    num_candidates: int = 1  # drafts: canvases that share each pass, or without canvases one after the other
    min_confidence: float = 0.0  # of a draft that is shown
    deadline: float = math.inf  # `time.monotonic` seconds at which the result is what is settled
    early_stop_passes: float = math.inf  # passes after which whole lines are enough
    may_repeat: bool = False  # neither lines nor loops end the text
    stops: tuple[str, ...] = ()  # texts that end it
    end_of: Callable[[str], int | None] = lambda _: None  # see `FillRequest.end_of`
    is_stopped: Callable[[], bool] = bool  # the user has stopped it
    max_length: int = 0  # tokens of prompt and text that a canvas may follow; 0: those of the longest prompt of a fill

    def is_over(self) -> bool:
        """The deadline has passed, or the user has stopped it."""
        return time.monotonic() >= self.deadline or self.is_stopped()


@dataclass(frozen=True, slots=True)
class StopCriteria:
    """When one request's fill is complete, and how much of it can be shown."""

    decode: Callable[[TokenIds], bytes]
    limits: Limits
    stop: str = ""  # the fill ends before a line that begins with it, unless it is empty
    removed: bytes = b""  # see `Layout.removed`

    def is_spelled(self, ids: TokenIds) -> bool:
        """The tokens go as far as the cursor."""
        return not self.removed or self.decode(ids).startswith(self.removed)

    def ending(self, draft: Draft, num_passes: int) -> Ending | None:
        """Why a fill ends that is this after so many passes; None where it goes on.

        With all its lines it might go on, unless its end is settled too.
        """
        text = self._fill(draft.ids).decode("utf-8", "replace")
        max_lines = math.inf if self.limits.max_lines is None else self.limits.max_lines
        has_more = text.strip("\n").count("\n") >= max_lines
        if draft.is_cut:
            return Ending.TOKENS
        if any(stop in text for stop in self.limits.stops if stop):
            return Ending.STOP
        if self._find_stop(text) is not None or (draft.is_ended and not has_more):
            return Ending.END
        if len(draft.ids) >= self._max_tokens(draft.ids):
            return Ending.TOKENS
        if self.limits.may_repeat:
            return None
        return text_ending(text, self.limits, is_early=num_passes >= self.limits.early_stop_passes)

    def within_limit(self, draft: Draft) -> Draft:
        """The draft without tokens beyond the longest fill, as a canvas may settle more than that in one pass."""
        most = self._max_tokens(draft.ids)
        if len(draft.ids) <= most:
            return draft
        return replace(draft, ids=draft.ids[:most], confidence=draft.confidence[:most], is_ended=False)

    def shown_bytes(self, draft: Draft) -> bytes:
        """The part of the fill to judge, without a last line that was broken off after whole ones."""
        fill = self._fill(draft.ids)
        text = fill.decode("utf-8", "surrogateescape")
        end = self._find_stop(text)
        if end is not None:
            return text[:end].encode("utf-8", "surrogateescape")
        whole = fill[: fill.rfind(b"\n") + 1]
        if draft.is_ended or not whole.strip() or _loops(fill.decode("utf-8", "replace"), fill.count(b"\n")):
            return fill
        return whole

    def num_shown(self, ids: TokenIds) -> int:
        """How many tokens are on the lines that may be shown, the line end after them left out."""
        if self.limits.max_lines is None:
            return len(ids)
        num_ends = 0
        for i in range(len(ids)):
            text = self.decode(ids[i : i + 1])
            num_ends += text.count(b"\n")
            if num_ends >= self.limits.max_lines:
                return i + (not text.startswith(b"\n"))
        return len(ids)

    def _fill(self, ids: TokenIds) -> bytes:
        """The text after the cursor; none where the tokens do not begin with the text before it."""
        return self.decode(ids)[len(self.removed) :] if self.is_spelled(ids) else b""

    def _max_tokens(self, ids: TokenIds) -> int:
        """How many tokens the draft may have, those before the cursor included."""
        limit = self.limits.max_tokens
        if len(ids) < limit or not self.removed:
            return limit
        sizes = (len(self.decode(ids[: at + 1])) for at in range(len(ids)))
        return limit + next((at for at, size in enumerate(sizes) if size > len(self.removed)), len(ids))

    def _find_stop(self, text: str) -> int | None:
        """Offset of the line end before the first line that begins with the stop, or of the end of a gap before it."""
        stop = f"\n{text}".find(f"\n{self.stop}") if self.stop else -1
        end = self.limits.end_of(text if stop < 0 else text[: max(0, stop - 1)])
        return max(0, stop - 1) if end is None and stop >= 0 else end


def text_ending(text: str, limits: Limits, *, is_early: bool) -> Ending | None:
    """Why a text is enough: it has as many lines as may be shown, or whole ones if `is_early`, or it repeats itself."""
    num_ends = text.count("\n")
    if limits.max_lines is not None and num_ends >= limits.max_lines:
        return Ending.TOKENS
    if _loops(text, num_ends):
        return Ending.END
    has_whole_line = bool(text.rpartition("\n")[0].strip())
    return Ending.DEADLINE if is_early and has_whole_line else None


def _loops(text: str, num_ends: int) -> bool:
    *ended, last = text.split("\n")
    return (num_ends > 1 and cut_loops(text) != text) or _has_loop(last) or any(map(_ended_line_has_loop, ended))


def _has_loop(line: str) -> bool:
    """See `is_repetitive`: five copies have one of these pieces four times, and the whole search is slow."""
    pieces = (line[at : at + 3] for at in range(0, len(line) - 2, 13))
    return any(line.count(piece) >= 4 for piece in pieces) and is_repetitive(line)


_ended_line_has_loop = lru_cache(maxsize=4096)(_has_loop)  # the last line grows: every pass would keep a copy of it


PIECE_MS = 30.0
"""Time of a piece of a prompt. Between two pieces the scheduler looks at newer requests."""
MIN_PIECE = 16
"""The fewest tokens of a piece that pay."""


@dataclass(slots=True)
class PrefillSpeed:
    """How fast a model decodes prompts on this machine now."""

    token_ms: float = 0.5  # until it is measured

    def piece(self, deadline: float) -> int:
        """Tokens of the next piece; fewer than pay where `deadline`, in `time.monotonic` seconds, comes first."""
        left_ms = 1e3 * max(0.0, deadline - time.monotonic())
        return max(1, int(min(max(PIECE_MS, MIN_PIECE * self.token_ms), left_ms, 1e9) / self.token_ms))

    def measure(self, num_tokens: int, seconds: float) -> None:
        """A piece took so long. That of a shorter one is mostly the constant cost of a pass."""
        if num_tokens >= MIN_PIECE:
            self.token_ms = max(1e-4, 1e3 * seconds / num_tokens)


class Decoder(ABC):
    """One way to decode, for one request."""

    def __init__(self, task: "DecodeTask") -> None:
        self._task = task

    @abstractmethod
    def run(self) -> Generator[Progress, None, tuple[Draft, ...]]:
        """One value per forward pass, then the drafts of all candidates. Raises what the denoiser raises."""


def gap_of(step: Step) -> Step:
    """The step without the frozen runs at both ends; the same object where nothing is frozen.

    The gap is read from the step, since a model may have resized it.
    """
    return step.take(gap_slice(step)) if step.frozen.any() else step


def gap_slice(step: Step) -> slice:
    """The free positions; empty where none is left."""
    free = np.flatnonzero(~step.frozen)
    return slice(int(free[0]), int(free[-1]) + 1) if len(free) else slice(0, 0)
