"""What is asked of the engine."""

from dataclasses import dataclass, field

from dg_lsp.context.extra import NO_EXTRA, Extra
from dg_lsp.context.snapshot import Snapshot
from dg_lsp.engine.plans.name import PlanName
from dg_lsp.engine.urgency import Urgency


@dataclass(frozen=True, slots=True)
class FillRequest:
    """A cursor in a buffer, and what may be shown there."""

    snapshot: Snapshot
    offset: int
    """Code-point offset of the cursor in the snapshot's text."""
    num_candidates: int = 1
    max_lines: int | None = None
    """None lets the place decide: one line inside or at the end of a line with text, a block on a blank line."""
    max_tokens: int | None = None
    """Longest fill; None takes the setting."""
    suffix_lines: int | None = None
    """Lines after the cursor's own that the model may see; None is as many as fit."""
    deadline_ms: float | None = None
    """Milliseconds from submission; None takes the setting."""
    patience_ms: float | None = None
    """Milliseconds after which whole lines are enough, 0 for never; None takes the setting."""
    plan: PlanName | None = None
    """How it is decoded; None takes the setting."""
    seed: int = 0
    extra: Extra = NO_EXTRA
    """Code from elsewhere; whether the model is shown any is for who asks to decide."""
    urgency: Urgency = field(default=Urgency.TYPED, compare=False)
