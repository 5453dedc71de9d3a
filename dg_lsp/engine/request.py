"""What is asked of the engine."""

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

from dg_lsp.context.document import Snapshot
from dg_lsp.context.snippets import NO_SNIPPETS, Snippets


class DecoderName(StrEnum):
    """How a request is decoded; as settings, the command line and records write it."""

    AUTO = "auto"
    """Whichever is expected to be useful first on this machine."""
    CANVAS = "canvas"
    """One open canvas, denoised."""
    RACE = "race"
    """Several canvases in one batch; the one that is judged best wins."""
    CAUSAL = "causal"
    """Token by token, greedily."""
    DRAFT_VERIFY = "draft-verify"
    """A canvas drafts; one causal pass accepts the longest run that it agrees with. Says what `causal` says."""
    LOOKUP = "lookup"
    """As draft-verify, but the draft is what followed the same last tokens elsewhere in the buffer."""

    @property
    def needs_canvas(self) -> bool:
        """Only for models that denoise."""
        return self in (DecoderName.CANVAS, DecoderName.RACE, DecoderName.DRAFT_VERIFY)

    @property
    def needs_causal_head(self) -> bool:
        """Only for weights that also decode token by token."""
        return self in (DecoderName.CAUSAL, DecoderName.DRAFT_VERIFY, DecoderName.LOOKUP)


class Priority(IntEnum):
    """Of a request, the most urgent first. One that comes while a less urgent one runs has the model at once."""

    TYPED = 0
    """A completion that nobody asked for by a key; it is worth something until the next character."""
    INVOKED = 1
    """A completion that was asked for."""
    REWRITE = 2
    CHAT = 3
    GUESS = 4
    """What will probably be asked for next."""
    WARM_UP = 5
    """A prompt that is only to be decoded."""


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
    early_stop_ms: float | None = None
    """Milliseconds after which whole lines are enough, 0 for never; None takes the setting."""
    plan: DecoderName | None = None
    """How it is decoded; None takes the setting."""
    seed: int = 0
    extra: Snippets = NO_SNIPPETS
    """Code from elsewhere; whether the model is shown any is for who asks to decide."""
    priority: Priority = field(default=Priority.TYPED, compare=False)


@dataclass(frozen=True, slots=True)
class RewriteRequest:
    """A stretch of a buffer that is to be written anew; everything else is frozen."""

    snapshot: Snapshot
    start: int
    end: int
    """Code-point offsets into the snapshot's text, `start < end`."""
    instruction: str = ""
    """What is to be done, in words; empty lets the model write what it thinks belongs there."""
    strength: float = 1.0
    """Share of the tokens that are given up, above 0 and at most 1: 0.3 keeps most of them, 1 starts from nothing."""
    deadline_ms: float = 60_000.0
    """Milliseconds from submission after which nothing is the answer."""
    seed: int = 0
    must_fix_errors: bool = False
    """A buffer that does not parse must parse better afterwards."""
    extra: Snippets = NO_SNIPPETS
    """Code from elsewhere."""
