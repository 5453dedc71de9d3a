"""Which plan is expected to be useful first here: what the passes cost on this machine, times how many a plan takes.

Knows no text but the cursor's line. Nothing is assumed of diffusion or of causal decoding.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

import numpy as np

from dg_lsp.canvas.fim import open_canvas
from dg_lsp.canvas.infill import GAP_LENGTHS
from dg_lsp.canvas.layout import token_ids
from dg_lsp.canvas.spec import ExpectedPasses, ModelSpec, PromptFormat, Sampling
from dg_lsp.context.document import Cursor
from dg_lsp.diffusion.denoiser import Denoiser
from dg_lsp.engine.decoders.autoregressive import (
    AutoregressiveDecoder,
    PromptLookupDecoder,
    SpeculativeDecoder,
)
from dg_lsp.engine.decoders.base import Decoder, DecodeTask
from dg_lsp.engine.decoders.diffusion import DiffusionDecoder
from dg_lsp.engine.decoders.infill import InfillDecoder
from dg_lsp.engine.request import DecoderName
from dg_lsp.engine.stop_criteria import MIN_RACE, canvas_length
from dg_lsp.errors import RequestError

CAUSAL_TOKENS = (1, 8)
CANVAS_TOKENS = (8, 32)
_PROMPT_TOKENS = 64
_ROUNDS = 4
_KINDS = ("causal", "canvas")

Points = tuple[tuple[int, float], ...]
"""(tokens, milliseconds), by ascending tokens."""


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Milliseconds of a forward pass by the number of its tokens."""

    causal: Points = ()
    """Empty without a causal head."""
    canvas: Points = ()
    """All canvases of the pass together; empty without a canvas."""

    def extend(self, num_tokens: float) -> float:
        """A causal pass; infinite where there is none."""
        return _between(self.causal, num_tokens)

    def predict(self, num_tokens: float) -> float:
        """A pass over canvases; infinite where there is none."""
        return _between(self.canvas, num_tokens)


def measure_costs(denoiser: Denoiser, *, clock: Callable[[], float] = time.perf_counter) -> StepCosts:
    """The best of a few passes of each kind over a short prompt; the slot that it takes is empty again afterwards.

    The best, not the middle: on a busy machine most passes are held up, and no plan is to be blamed for that.

    Raises:
        BackendError: the runtime failed.
    """
    spec, slot = denoiser.spec, denoiser.num_slots - 1
    rng = np.random.default_rng(0)
    prompt = token_ids(rng.integers(0, spec.vocab_size, min(_PROMPT_TOKENS, spec.max_prompt_tokens)))
    steps: list[tuple[str, int, Callable[[], object]]] = []
    if spec.has_causal_head:
        steps += [("causal", size, partial(denoiser.extend, slot, prompt[:size])) for size in CAUSAL_TOKENS]
    for size in sorted({min(size, spec.longest_block) for size in CANVAS_TOKENS}) if spec.sampling else ():
        canvas = open_canvas(prompt, spec, size, rng).canvas_ids
        steps.append(("canvas", size, partial(denoiser.predict, slot, [canvas], 0.0, rng)))
    best = [math.inf] * len(steps)
    for number, (_, _, step) in enumerate(steps):
        for _ in range(_ROUNDS):  # in a row, as in a fill: a pass like the one before it is cheaper
            denoiser.prefill(slot, prompt)
            start = clock()
            step()
            best[number] = min(best[number], 1e3 * (clock() - start))
    denoiser.prefill(slot, prompt[:0])
    points = {kind: tuple((s, ms) for (k, s, _), ms in zip(steps, best, strict=True) if k == kind) for kind in _KINDS}
    return StepCosts(**points)


def _between(points: Points, x: float) -> float:
    """On the line through the two points next to `x`; never less than the cheapest."""
    if len(points) < 2:
        return points[0][1] if points else float("inf")
    after = next((i for i in range(1, len(points)) if x <= points[i][0]), len(points) - 1)
    (x0, y0), (x1, y1) = points[after - 1 : after + 1]
    return max(min(y0, y1), y0 + (y1 - y0) * (x - x0) / (x1 - x0))


CHECKED = 4
"""Tokens of a pass over a guess: the newest one, and about three that are guessed."""


class PositionKind(StrEnum):
    """What a place wants, as far as the buffer tells."""

    LINE_END = "line-end"
    """The rest of a line that has text."""
    WHOLE_LINE = "whole-line"
    """One line where there is none."""
    BLOCK = "block"
    """Any number of lines where there is none."""

    @classmethod
    def of(cls, place: Cursor, max_lines: int | None) -> "PositionKind":
        """`max_lines` is what may be shown there."""
        if not place.is_blank_line:
            return cls.LINE_END
        return cls.WHOLE_LINE if max_lines == 1 else cls.BLOCK


class DecoderSelection:
    """Chooses for one model on one machine."""

    def __init__(self, spec: ModelSpec, costs: StepCosts | None, *, wanted_length: int = 0) -> None:
        """Without costs nothing is weighed: a canvas where there is one. `wanted_length` is the settings' canvas."""
        self._spec = spec
        self._is_pinned = spec.prompt_format is PromptFormat.PINNED
        self._wanted_length = wanted_length
        self.costs = costs

    def choose(self, kind: PositionKind) -> DecoderName:
        """The plan with the least expected time to a useful edit, of those that the model can do."""
        possible = self._possible()
        if self.costs is None:
            return possible[0]
        return min(possible, key=lambda plan: self.expected_ms(plan, kind))

    def expected_ms(self, plan: DecoderName, kind: PositionKind) -> float:
        """Milliseconds after the prompt, per useful edit: a plan that is right half as often takes twice as long.

        Infinite without costs, and for what nobody measured.
        """
        row = _row(self._spec.expectations, plan, kind) or _row(DEFAULTS, plan, kind)
        if row is None or self.costs is None:
            return float("inf")
        ms = row.singles * self.costs.extend(1) if row.singles else 0.0
        ms += row.checks * self.costs.extend(CHECKED) if row.checks else 0.0
        if row.canvases:
            length = canvas_length(self._wanted_length, self._spec, None if kind is PositionKind.BLOCK else 1)
            ms += row.canvases * self.costs.predict(length * self._num_canvases(plan))
        return ms / row.hits

    def _num_canvases(self, plan: DecoderName) -> int:
        if self._is_pinned:
            return len(self._spec.gap_lengths or GAP_LENGTHS)
        return MIN_RACE if plan is DecoderName.RACE else 1

    def _possible(self) -> Sequence[DecoderName]:
        has_canvas, has_head = self._spec.sampling is not None, self._spec.has_causal_head
        return [
            plan
            for plan in DecoderName
            if plan is not DecoderName.AUTO
            and not (plan is DecoderName.RACE and self._is_pinned)  # a pinned canvas is a race of its own
            and (has_canvas or not plan.needs_canvas)
            and (has_head or not plan.needs_causal_head)
        ]


def _row(table: Sequence[ExpectedPasses], plan: DecoderName, kind: PositionKind) -> ExpectedPasses | None:
    return next((row for row in table if row.plan == plan and row.kind == kind), None)


def _default(kind: str, plan: str, singles: float, checks: float, canvases: float) -> ExpectedPasses:
    return ExpectedPasses(kind, plan, singles, checks, canvases, hits=0.3)


DEFAULTS = (
    _default("line-end", "causal", 5.8, 0.0, 0.0),
    _default("line-end", "lookup", 3.3, 1.4, 0.0),
    _default("line-end", "draft-verify", 1.1, 2.5, 3.6),
    _default("line-end", "canvas", 0.0, 0.0, 6.2),
    _default("line-end", "race", 0.0, 0.0, 6.9),
    _default("whole-line", "causal", 9.1, 0.0, 0.0),
    _default("whole-line", "lookup", 4.9, 2.1, 0.0),
    _default("whole-line", "draft-verify", 1.2, 4.0, 5.3),
    _default("whole-line", "canvas", 0.0, 0.0, 9.3),
    _default("whole-line", "race", 0.0, 0.0, 10.8),
    _default("block", "causal", 9.8, 0.0, 0.0),
    _default("block", "lookup", 4.0, 2.6, 0.0),
    _default("block", "draft-verify", 0.4, 4.1, 4.6),
    _default("block", "canvas", 0.0, 0.0, 9.6),
    _default("block", "race", 0.0, 0.0, 13.4),
)
"""For files that say nothing: passes of a 5 M model at 151 places, taken to be right equally often by every plan."""


def decoder_of(plan: DecoderName, task: DecodeTask, sampling: Sampling | None) -> Decoder:
    """A plan other than `auto` at work. A race has as many canvases as the task's limits say.

    Raises:
        RequestError: the model lacks what the plan needs.
    """
    spec = task.denoiser.spec
    if plan.needs_causal_head and not spec.has_causal_head:
        seen = " in the format pinned" if spec.prompt_format is PromptFormat.PINNED else ""
        raise RequestError(f"{spec.name} has no causal head{seen}, which the plan {plan} needs; choose canvas or race")
    if plan is DecoderName.CAUSAL:
        return AutoregressiveDecoder(task)
    if plan is DecoderName.LOOKUP:
        return PromptLookupDecoder(task)
    if sampling is None:
        raise RequestError(f"{spec.name} has no canvas, which the plan {plan} needs; choose causal or lookup")
    if plan is DecoderName.DRAFT_VERIFY:
        return SpeculativeDecoder(task, sampling)
    is_pinned = spec.prompt_format is PromptFormat.PINNED
    return InfillDecoder(task, sampling) if is_pinned else DiffusionDecoder(task, sampling)
