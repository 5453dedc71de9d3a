"""The result of a fill, or the reason there is none."""

from dataclasses import dataclass
from enum import StrEnum


class Reason(StrEnum):
    """Why a fill is not worth showing."""

    EMPTY = "empty"
    """Nothing, or only blanks where blanks mean nothing."""
    REPEATS_SUFFIX = "repeats-suffix"
    """It only says what already follows the cursor."""
    REPEATS_PREFIX = "repeats-prefix"
    """It says the line before the cursor again."""
    REPEATS_ITSELF = "repeats-itself"
    """The same few words over and over."""
    SYNTAX_ERROR = "syntax-error"
    """It adds a syntax error where there was none."""
    INDENTATION = "indentation"
    """What follows is deeper than it, and it opens no block."""
    UNCHANGED = "unchanged"
    """A rewrite that says what was there already."""
    NOT_TEXT = "not-text"
    """Its bytes are no UTF-8, or hold control characters."""
    UNFINISHED = "unfinished"
    """The deadline came before anything was stable."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """Text to insert at the cursor, in the buffer's own line ends and indentation."""

    text: str
    score: float
    """Mean log probability per token, in nats; higher is better."""
    chance: float = 1.0
    """Probability that the first line is what the user wants, as the model sees it; 1 where nobody asked it."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """A fill that is not shown."""

    reason: Reason
    text: str = ""
