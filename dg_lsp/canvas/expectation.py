"""What decoding takes on average: measured on validation data, carried by the model's file."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Expectation:
    """One plan at one kind of place, from the prompt to the answer."""

    kind: str
    """Of the place: `line-end`, `whole-line` or `block`."""
    plan: str
    singles: float
    """Causal passes of one token."""
    checks: float
    """Causal passes over a guess."""
    canvases: float
    """Passes over a canvas, or over all canvases of a race."""
    hits: float
    """Share of answers whose first line is right, above 0."""
