"""Which plan is expected to be useful first here: what the passes cost on this machine, times how many a plan takes.

Knows no text but the cursor's line. Nothing is assumed of diffusion or of causal decoding.
"""

from collections.abc import Sequence
from enum import StrEnum

from dg_lsp.canvas.expectation import Expectation
from dg_lsp.canvas.pinned import HOLE_LENGTHS
from dg_lsp.canvas.spec import ModelSpec, PromptFormat
from dg_lsp.context.place import Place
from dg_lsp.engine.costs import StepCosts
from dg_lsp.engine.limits import MIN_RACE, canvas_length
from dg_lsp.engine.plans.name import PlanName

CHECKED = 4
"""Tokens of a pass over a guess: the newest one, and about three that are guessed."""


class PlaceKind(StrEnum):
    """What a place wants, as far as the buffer tells."""

    LINE_END = "line-end"
    """The rest of a line that has text."""
    WHOLE_LINE = "whole-line"
    """One line where there is none."""
    BLOCK = "block"
    """Any number of lines where there is none."""

    @classmethod
    def of(cls, place: Place, max_lines: int | None) -> "PlaceKind":
        """`max_lines` is what may be shown there."""
        if not place.is_blank_line:
            return cls.LINE_END
        return cls.WHOLE_LINE if max_lines == 1 else cls.BLOCK


class Planner:
    """Chooses for one model on one machine."""

    def __init__(self, spec: ModelSpec, costs: StepCosts | None, *, wanted_length: int = 0) -> None:
        """Without costs nothing is weighed: a canvas where there is one. `wanted_length` is the settings' canvas."""
        self._spec = spec
        self._is_pinned = spec.prompt_format is PromptFormat.PINNED
        self._wanted_length = wanted_length
        self.costs = costs

    def choose(self, kind: PlaceKind) -> PlanName:
        """The plan with the least expected time to a useful edit, of those that the model can do."""
        possible = self._possible()
        if self.costs is None:
            return possible[0]
        return min(possible, key=lambda plan: self.expected_ms(plan, kind))

    def expected_ms(self, plan: PlanName, kind: PlaceKind) -> float:
        """Milliseconds after the prompt, per useful edit: a plan that is right half as often takes twice as long.

        Infinite without costs, and for what nobody measured.
        """
        row = _row(self._spec.expectations, plan, kind) or _row(DEFAULTS, plan, kind)
        if row is None or self.costs is None:
            return float("inf")
        ms = row.singles * self.costs.extend(1) if row.singles else 0.0
        ms += row.checks * self.costs.extend(CHECKED) if row.checks else 0.0
        if row.canvases:
            length = canvas_length(self._wanted_length, self._spec, None if kind is PlaceKind.BLOCK else 1)
            ms += row.canvases * self.costs.predict(length * self._num_canvases(plan))
        return ms / row.hits

    def _num_canvases(self, plan: PlanName) -> int:
        if self._is_pinned:
            return len(self._spec.hole_lengths or HOLE_LENGTHS)
        return MIN_RACE if plan is PlanName.RACE else 1

    def _possible(self) -> Sequence[PlanName]:
        has_canvas, has_head = self._spec.sampling is not None, self._spec.has_causal_head
        return [
            plan
            for plan in PlanName
            if plan is not PlanName.AUTO
            and not (plan is PlanName.RACE and self._is_pinned)  # a pinned canvas is a race of its own
            and (has_canvas or not plan.needs_canvas)
            and (has_head or not plan.needs_causal_head)
        ]


def _row(table: Sequence[Expectation], plan: PlanName, kind: PlaceKind) -> Expectation | None:
    return next((row for row in table if row.plan == plan and row.kind == kind), None)


def _default(kind: str, plan: str, singles: float, checks: float, canvases: float) -> Expectation:
    return Expectation(kind, plan, singles, checks, canvases, hits=0.3)


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
