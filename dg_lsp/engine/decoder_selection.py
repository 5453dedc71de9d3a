"""Selects the decoder with the least expected time to a useful edit, or to a token of a text.

The expected time is measured costs times expected passes. Nothing is assumed about diffusion or autoregressive
decoding; of the text only the cursor's line counts.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

import numpy as np

from dg_lsp.canvas.layout import OPEN, Layout, TokenIds, token_ids
from dg_lsp.canvas.spec import OPTIONS_OF_ALL, DecoderName, ExpectedPasses, ModelSpec, PromptFormat
from dg_lsp.diffusion.denoiser import Denoiser
from dg_lsp.engine.decoders.base import Limits
from dg_lsp.engine.request import FillRequest, Priority
from dg_lsp.errors import OptionError, RequestError
from dg_lsp.settings import CompletionSettings, SamplerOptions

CAUSAL_TOKENS = (1, 8)
CANVAS_TOKENS = (8, 32)
VERIFIED_TOKENS = 4  # tokens of a pass that verifies a draft: the newest token, and about three drafted ones
_PROMPT_TOKENS = 32
_ROUNDS = 4
_ENOUGH_MS = 100.0
"""A kind of pass is measured so many times, or for so long that a short delay hardly changes the result."""
_TYPED_TOKENS, _LINE_TOKENS = 16, 10
"""Of a line that is completed while the user types: tokens of the prompt that are not cached, and of the line."""
_USUAL_MS = 5.0  # of a pass, where costs were not measured

Points = tuple[tuple[int, float], ...]
"""(tokens, milliseconds), by ascending tokens, at most two."""


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Milliseconds of a forward pass by the number of its tokens."""

    causal: Points = ()  # empty without a causal head
    canvas: Points = ()  # all canvases of the pass together; empty without a canvas
    prompt_token: float = 0.0  # one token of a prompt that is not cached, decoded with many others

    @property
    def line_ms(self) -> float:
        """A line while the user types, token by token; infinite without a causal head."""
        return _TYPED_TOKENS * self.prompt_token + _LINE_TOKENS * self.extend(1)

    def extend(self, num_tokens: float) -> float:
        """A causal pass; infinite without a causal head."""
        return _interpolate(self.causal, num_tokens)

    def predict(self, num_tokens: float) -> float:
        """A pass over canvases; infinite without a canvas."""
        return _interpolate(self.canvas, num_tokens)


NO_COSTS = StepCosts()
"""Of a model that was not measured: every pass is infinitely slow."""


def measure_costs(denoiser: Denoiser, *, clock: Callable[[], float] = time.perf_counter) -> StepCosts:
    """The best of a few passes of each kind over a short prompt; their slot is empty again afterwards.

    The best rather than the median, since other processes delay passes of every kind.

    Raises:
        BackendError: the runtime failed.
    """
    spec = denoiser.spec
    slot = denoiser.num_slots - 1
    rng = np.random.default_rng(0)
    prompt = token_ids(rng.integers(0, spec.vocab_size, min(_PROMPT_TOKENS, spec.max_prompt_tokens)))

    def best_ms(step: Callable[[], object], before: TokenIds = prompt) -> float:
        times: list[float] = []
        # in a row, as in a fill: a pass like the one before it is cheaper
        while len(times) < _ROUNDS and sum(times) < _ENOUGH_MS:
            denoiser.prefill(slot, before)
            start = clock()
            step()
            times.append(1e3 * (clock() - start))
        return min(times)

    prompt_ms = best_ms(partial(denoiser.prefill, slot, prompt), prompt[:0])
    causal = CAUSAL_TOKENS if spec.has_causal_head else ()
    lengths = sorted({min(size, spec.longest_block) for size in CANVAS_TOKENS}) if spec.sampling else []
    canvases = [(size, [Layout(prompt).canvas(size, spec, rng).canvas_ids]) for size in lengths]
    costs = StepCosts(
        causal=tuple((size, best_ms(partial(denoiser.extend, slot, prompt[:size]))) for size in causal),
        canvas=tuple((size, best_ms(partial(denoiser.predict, slot, ids, 0.0, rng))) for size, ids in canvases),
        prompt_token=prompt_ms / len(prompt),
    )
    denoiser.prefill(slot, prompt[:0])
    return costs


def _interpolate(points: Points, x: float) -> float:
    """On the line through the two measured points; at least the cheaper of them."""
    if len(points) < 2:
        return points[0][1] if points else math.inf
    (x0, y0), (x1, y1) = points
    return max(min(y0, y1), y0 + (y1 - y0) * (x - x0) / (x1 - x0))


class PositionKind(StrEnum):
    """How much text a request needs: at a cursor position, or without one."""

    LINE_END = "line-end"  # the rest of a line with text
    WHOLE_LINE = "whole-line"  # one line on a blank line
    LINES = "block"  # any number of lines on a blank line; model files name it so
    TEXT = "text"  # an answer, or the continuation of a text; expected passes are those of one token


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSelection:
    """Selects the decoder of one request, and its limits."""

    spec: ModelSpec
    costs: StepCosts
    """If all are infinite, `auto` is the first of `possible_decoders`."""
    kind: PositionKind
    num_missing: int = 0  # prompt tokens that are not cached

    def choose(self, wanted: DecoderName = DecoderName.AUTO) -> DecoderName:
        """The decoder that runs where `wanted` is set."""
        is_infill = self.spec.prompt_format is PromptFormat.INFILL and self.kind is not PositionKind.TEXT
        if wanted is DecoderName.AUTO:
            possible = (decoder for decoder in possible_decoders(self.spec) if decoder is not DecoderName.INFILL)
            wanted = min(possible, key=self.expected_ms)
        return DecoderName.INFILL if is_infill and wanted is DecoderName.DIFFUSION else wanted

    def limits(
        self,
        request: FillRequest,
        settings: CompletionSettings,
        decoder: DecoderName,
        deadline: float,
        layout: Layout = OPEN,
    ) -> Limits:
        """The request's limits; where it sets none, those of the settings, the cursor and the model.

        `deadline` is in `time.monotonic` seconds. `layout` has what stands in the canvas beside the fill.

        Raises:
            RequestError: the canvas has no room for a fill.
        """
        length = 0
        if decoder.needs_canvas:
            length = canvas_length(self.spec, request.line_limit, layout, is_infill=decoder is DecoderName.INFILL)
        num_canvases = self.spec.num_canvases(request.num_candidates) if decoder is DecoderName.DIFFUSION else 1
        stop_ms = early_stop_ms(request, settings, deadline)
        return Limits(
            canvas_length=length,
            max_tokens=settings.max_tokens if request.max_tokens is None else request.max_tokens,
            max_lines=request.line_limit,
            num_candidates=request.num_candidates,
            end_of=request.end_of,
            min_confidence=request.min_confidence(settings) or 0.0,
            deadline=deadline,
            early_stop_passes=self.num_passes(stop_ms, decoder, num_canvases * length),
        )

    def expected_ms(self, decoder: DecoderName) -> float:
        """Milliseconds for each useful edit: half as many right answers double them. `infill` has no such number."""
        rows = (*self.spec.expectations, *DEFAULTS)
        row = next(row for row in rows if row.decoder is decoder and row.kind == self.kind)
        is_line = self.kind in (PositionKind.LINE_END, PositionKind.WHOLE_LINE)
        least = self.spec.longest_block if self.kind is PositionKind.TEXT else 0
        length = canvas_length(self.spec, 1 if is_line else None, least=least)
        kinds = (
            (row.singles, self.costs.extend(1)),
            (row.checks, self.costs.extend(VERIFIED_TOKENS)),
            (row.canvases, self.costs.predict(length)),
        )
        passes_ms = sum(num * ms for num, ms in kinds if num)  # a kind of pass that the model lacks is infinitely slow
        return (self.num_missing * self.costs.prompt_token + passes_ms) / row.hits

    def num_passes(self, ms: float, decoder: DecoderName, num_tokens: int) -> float:
        """Passes over canvases of so many tokens that take about this time on an idle machine.

        A power of two: costs that were measured a little differently give the same number.
        """
        if math.isinf(ms):
            return ms
        pass_ms = [self.costs.predict(num_tokens)] if decoder.needs_canvas else []
        if decoder.needs_causal_head:
            pass_ms.append(self.costs.extend(VERIFIED_TOKENS if pass_ms else 1))
        mean_ms = sum(pass_ms) / len(pass_ms)
        return float(2.0 ** round(math.log2(ms / (mean_ms if 0 < mean_ms < math.inf else _USUAL_MS))))


def early_stop_ms(request: FillRequest, settings: CompletionSettings, deadline: float) -> float:
    """Milliseconds after which whole lines are enough; infinite for never, and where there is no deadline.

    The setting is for automatic completions: a user who requests some waits for them, and they do not depend on the
    costs that were measured at load.
    """
    stop_ms = request.early_stop_ms
    if stop_ms is None:
        stop_ms = 0.0 if request.priority is Priority.INVOKED else settings.early_stop_ms
    return stop_ms if stop_ms and deadline < math.inf else math.inf


def canvas_length(
    spec: ModelSpec, max_lines: int | None, layout: Layout = OPEN, *, is_infill: bool = False, least: int = 0
) -> int:
    """Tokens of a canvas: the length that is set, else the shortest that holds `least`, or the lines and frozen tokens.

    Raises:
        RequestError: it has no room for a fill.
    """
    wanted = spec.canvas_length
    frozen = layout.num_frozen
    if 0 < wanted <= frozen:
        raise RequestError(
            f"canvas_length {wanted} has no room beside {frozen} tokens that are known; choose at least {frozen + 4}"
        )
    if is_infill:
        least = frozen + spec.gap_lengths[-1]
    # an open canvas continues in the next one; frozen tokens make a short one shorter
    least = least or frozen + (32 if max_lines != 1 else 16 if frozen else 8)
    return wanted or spec.canvas_for(least)


def decoder_with(options: SamplerOptions, wanted: DecoderName, spec: ModelSpec) -> DecoderName:
    """The decoder of a request with these options: `auto` denoises where the model has a canvas for that.

    Raises:
        OptionError: the decoder does not read one of the options.
    """
    names = [name for name in options.values if name not in OPTIONS_OF_ALL]
    if not names or wanted.needs_final_canvas:
        return wanted
    if wanted is DecoderName.AUTO:
        return DecoderName.DIFFUSION if spec.has_final_canvas else wanted
    if unread := [name for name in names if name != "canvas_length" or not wanted.needs_canvas]:
        raise OptionError(unread[0], f"does not apply to the decoder {wanted.value}: leave one of them out")
    return wanted


def possible_decoders(spec: ModelSpec) -> list[DecoderName]:
    """The decoders that the model can run."""
    has_parts = {
        DecoderName.DIFFUSION: spec.has_final_canvas,
        DecoderName.AUTOREGRESSIVE: spec.has_causal_head,
        DecoderName.SPECULATIVE: spec.has_causal_head and spec.is_drafter,
        DecoderName.PROMPT_LOOKUP: spec.has_causal_head,
        DecoderName.INFILL: spec.has_free_canvas,
    }
    return [decoder for decoder, has_part in has_parts.items() if has_part]


_PASSES = {
    # (singles, checks, canvases) at each kind of position, and for each token of a text
    DecoderName.AUTOREGRESSIVE: ((5.8, 0.0, 0.0), (9.1, 0.0, 0.0), (9.8, 0.0, 0.0), (1.0, 0.0, 0.0)),
    DecoderName.PROMPT_LOOKUP: ((3.3, 1.4, 0.0), (4.9, 2.1, 0.0), (4.0, 2.6, 0.0), (0.34, 0.21, 0.0)),
    DecoderName.SPECULATIVE: ((0.0, 1.5, 1.5), (0.0, 1.8, 1.8), (0.0, 1.8, 1.8), (0.0, 0.08, 0.08)),
    DecoderName.DIFFUSION: ((0.0, 0.0, 6.2), (0.0, 0.0, 9.3), (0.0, 0.0, 9.6), (0.0, 0.0, 0.92)),
}
DEFAULTS = tuple(
    ExpectedPasses(kind, decoder, *means, hits=0.3)
    for decoder, rows in _PASSES.items()
    for kind, means in zip(PositionKind, rows, strict=True)
)
"""For models whose file has no such table: passes of a 5 M model at 151 positions, all decoders equally often right.

Those of a text are of the same model, except for `prompt-lookup`: there of dg-base, whose texts repeat less. Those of
`speculative` are a canvas and a check for every 12 tokens, because Nemotron is published as 6.1 times faster than token
by token.
"""
