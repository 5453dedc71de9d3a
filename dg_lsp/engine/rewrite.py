"""What is asked of a rewrite, and what is answered."""

from dataclasses import dataclass

from dg_lsp.context.extra import NO_EXTRA, Extra
from dg_lsp.context.snapshot import Snapshot
from dg_lsp.engine.result import Timings
from dg_lsp.postprocess.candidate import Rejection


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
    must_mend: bool = False
    """A buffer that does not parse must parse better afterwards."""
    extra: Extra = NO_EXTRA
    """Code from elsewhere."""


@dataclass(frozen=True, slots=True)
class RewriteResult:
    """The new text of the stretch, or why there is none."""

    model: str
    start: int
    end: int
    """Offsets of what `text` stands for: an instruction is about whole lines."""
    text: str
    """In the buffer's own line ends and indentation; empty where it was rejected."""
    rejection: Rejection | None
    score: float
    """Mean log probability per token, in nats."""
    chance: float
    """Probability that the first line is what the user wants, as the model sees it; 0 where it was rejected."""
    follows_instructions: bool
    """False where an instruction was given to a model that knows none: it saw it as a comment."""
    steps: int
    timings: Timings
