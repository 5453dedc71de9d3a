"""How long a fill may get, and how long it may take."""

import math
import time
from dataclasses import dataclass

from dg_lsp.canvas.layout import OPEN, Layout
from dg_lsp.canvas.pinned import HOLE_LENGTHS, MIN_SUFFIX
from dg_lsp.canvas.spec import ModelSpec, PromptFormat
from dg_lsp.context.place import Place, allowed_lines
from dg_lsp.engine.plans.name import PlanName
from dg_lsp.engine.request import FillRequest
from dg_lsp.errors import RequestError
from dg_lsp.settings import FillSettings

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
    plan: PlanName,
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
    patience_ms = settings.patience_ms if request.patience_ms is None else request.patience_ms
    max_lines = request.max_lines
    if max_lines is None:
        max_lines = allowed_lines(Place.at(request.snapshot.text, request.offset))
    return Limits(
        canvas_length=canvas_length(settings.canvas_length, spec, max_lines, layout) if plan.needs_canvas else 0,
        max_tokens=request.max_tokens or settings.max_tokens,
        max_lines=max_lines,
        num_canvases=max(request.num_candidates, MIN_RACE) if plan is PlanName.RACE else 1,
        deadline=deadline,
        patience=deadline - seconds + patience_ms / 1e3 if patience_ms else math.inf,
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
        least = num_frozen + (spec.hole_lengths or HOLE_LENGTHS)[-1]
    return wanted or min((n for n in spec.canvas_lengths if n >= least), default=spec.longest_block)
