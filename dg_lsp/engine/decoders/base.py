"""Interface of the decoders, and the values that they take and return."""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from dg_lsp.canvas.layout import NOTHING, Canvas, Flags, Layout, TokenIds, among
from dg_lsp.canvas.spec import ModelSpec, Sampling
from dg_lsp.diffusion.denoiser import Floats, Passes, is_whole
from dg_lsp.diffusion.samplers import Step
from dg_lsp.engine.repetition import Repetition
from dg_lsp.engine.result import Cell, Frame
from dg_lsp.engine.stop_criteria import Limits, StopCriteria

Value = TypeVar("Value")
Other = TypeVar("Other")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """Settled tokens of one candidate, the end token left out."""

    ids: TokenIds
    confidence: Floats  # probability of each token when it was committed, that of the end token included
    is_ended: bool = False
    join: float = 0.0  # mean log probability in nats of the frozen tokens after the fill; 0 where none are
    is_cut: bool = False  # it has ended, because further lines may not be shown

    def grow(self, ids: TokenIds, confidence: Floats, end_ids: frozenset[int]) -> "Draft":
        """This draft and committed tokens after it, up to the first end token."""
        # a scan of a list: numpy takes several times longer for so few tokens
        length = next((at for at, token in enumerate(ids.tolist()) if token in end_ids), len(ids))
        is_ended = length < len(ids)
        new_ids, new_confidence = ids[:length], confidence[: length + is_ended]
        if len(self.confidence):
            new_ids = np.concatenate([self.ids, new_ids])
            new_confidence = np.concatenate([self.confidence, new_confidence])
        return Draft(new_ids, new_confidence, is_ended)

    def settle(self, step: Step, end_ids: frozenset[int]) -> "Draft":
        """This draft and the settled beginning of the canvas after it."""
        settled = step.num_settled
        # with uniform noise the canvas may hold noise at a settled position
        return self.grow(step.draft_ids[:settled], step.confidence[:settled], end_ids)

    def cut(self, length: int, *, is_cut: bool) -> "Draft":
        """The first tokens, as a fill that has ended."""
        ids, confidence = self.ids[:length], self.confidence[:length]
        return replace(self, ids=ids, confidence=confidence, is_ended=True, is_cut=is_cut)

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
    num_removed: int = 0  # bytes before the cursor with which the draft begins, see `Layout.removed`
    is_answer: bool = False  # to a conversation: a thought may come first
    is_thinking: bool = False  # see `ModelSpec.is_thinking`

    @classmethod
    def of(cls, block: int, number: int, step: Step, draft: Draft, num_earlier: int = 0) -> "Progress":
        """The canvas after a step."""
        canvas = step.draft_ids, step.confidence, step.committed
        return cls(block, number, draft, *canvas, num_earlier=num_earlier)

    def frame(self, decode: Callable[[TokenIds], bytes], end_ids: TokenIds) -> Frame:
        """The canvas position by position, and the settled text, both from the cursor on."""
        earlier_ids, ids, committed = self.draft.ids[: self.num_earlier], self.ids, self.committed
        num_hidden = max(0, self.num_removed - len(decode(earlier_ids)))  # bytes of the canvas

        def text(ids: TokenIds) -> str:
            return decode(ids)[self.num_removed :].decode("utf-8", "replace")

        if committed is None:
            committed = np.arange(len(ids)) < len(self.draft.confidence)
        frozen = np.zeros(len(ids), np.bool_) if self.frozen is None else self.frozen
        flags = committed.tolist(), among(ids, end_ids).tolist(), frozen.tolist()
        facts = zip(self.confidence.tolist(), *flags, strict=True)
        cells = list[Cell]()
        for i, cell_facts in enumerate(facts):
            piece = decode(ids[i : i + 1])
            if len(piece) > num_hidden or not num_hidden:
                cells.append(Cell(piece[num_hidden:].decode("utf-8", "replace"), *cell_facts))
            num_hidden = max(0, num_hidden - len(piece))
        return Frame(self.block, self.number, tuple(cells), text(self.draft.ids), text(earlier_ids))


def mapped(
    steps: Generator[Value, None, Result], change: Callable[[Value], Other | None]
) -> Generator[Other, None, Result]:
    """The same steps, each changed, without those that become None, and the same result."""
    with closing(steps):
        while True:
            try:
                step = next(steps)
            except StopIteration as end:
                result: Result = end.value
                return result
            if (changed := change(step)) is not None:
                yield changed


PIECE_MS, MIN_PIECE = 30.0, 16
"""Time of a piece of a prompt, between which the scheduler looks at newer requests, and the fewest tokens that pay."""


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


def prefill(
    denoiser: Passes, slot: int, prompt_ids: TokenIds, speed: PrefillSpeed, limits: Limits | None = None
) -> Generator[Progress, None, int | None]:
    """Decodes a prompt in pieces, with a value between two of them; stops where the limits are over.

    Returns the number of tokens that were decoded, None where some are left.
    """
    num_decoded = 0
    while limits is None or not limits.is_over():
        most, began = speed.piece(limits.deadline if limits else math.inf), time.perf_counter()
        num_new = denoiser.prefill(slot, prompt_ids, most)
        speed.measure(num_new, time.perf_counter() - began)
        num_decoded += num_new
        if is_whole(num_new, prompt_ids, most):
            return num_decoded
        yield Progress(0, 0, EMPTY, EMPTY.ids, EMPTY.confidence)
    return None


@dataclass(frozen=True, slots=True, eq=False)
class DecodeTask:
    """One request as every decoder sees it."""

    denoiser: Passes
    slot: int  # of the KV cache
    layout: Layout
    limits: Limits
    stop: StopCriteria
    rng: np.random.Generator
    repetition: Repetition | None = None
    num_kept: int = 0  # first tokens of the layout's prompt that the slot holds
    speed: PrefillSpeed = field(default_factory=PrefillSpeed)

    @property
    def spec(self) -> ModelSpec:
        """The model's, in the request's prompt format."""
        return self.denoiser.spec

    @property
    def sampling(self) -> Sampling:
        """The model's, which must have a canvas."""
        assert self.spec.sampling is not None
        return self.spec.sampling

    @property
    def max_length(self) -> int:
        """Most tokens of prompt and fill together that a canvas may follow."""
        return self.limits.max_length or self.spec.max_prompt_tokens + self.spec.longest_block

    def prefill(self, prompt_ids: TokenIds) -> Generator[Progress, None, int]:
        """See `prefill`; returns how many tokens the slot lacked. If some are left, the limits are over."""
        num_decoded = yield from prefill(self.denoiser, self.slot, prompt_ids, self.speed, self.limits)
        return len(prompt_ids) - self.num_kept if num_decoded is None else num_decoded

    def is_done(self, draft: Draft, num_passes: int) -> bool:
        """The draft after so many passes meets the stop criteria."""
        return self.stop.is_met(draft.ids, is_ended=draft.is_ended, num_passes=num_passes)


class Decoder(ABC):
    """One way to decode, for one request."""

    def __init__(self, task: DecodeTask) -> None:
        self.num_decoded = 0  # prompt tokens that the slot lacked
        self.num_passes = 0  # so far, those of the prompt left out
        self.num_blocks = self.canvas_tokens = 0  # canvases that were denoised, and their tokens
        self._task = task
        self._end_ids = frozenset(task.spec.end_ids)

    @abstractmethod
    def run(self) -> Generator[Progress, None, tuple[Draft, ...]]:
        """One value per forward pass, then the drafts of all candidates. Raises what the denoiser raises."""

    def _count_canvases(self, canvases: Sequence[Canvas]) -> None:
        """Counts canvases of which a pass has begun."""
        self.num_blocks += len(canvases)
        self.canvas_tokens += sum(len(canvas.canvas_ids) for canvas in canvases)


def gap_of(step: Step) -> Step:
    """The step without the frozen runs at both ends; the same object where nothing is frozen.

    The gap is read from the step, since a model may have resized it.
    """
    if not step.frozen.any():
        return step
    return step.take(gap_slice(step))


def gap_slice(step: Step) -> slice:
    """The free positions; empty where none is left."""
    free = np.flatnonzero(~step.frozen)
    return slice(int(free[0]), int(free[-1]) + 1) if len(free) else slice(0, 0)
