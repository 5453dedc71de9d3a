"""Where the cursor stands: what is on its line, and the lines around it. Knows characters and lines only."""

from dataclasses import dataclass
from typing import Self

from dg_lsp.context.style import LINE_END, TAB_WIDTH

REACH = 4000
"""Characters looked at on each side of the cursor, however long the lines are."""
MAX_AFTER_WORD = 8
"""Characters after a cursor inside a word up to which completion may still be wanted unasked."""


@dataclass(frozen=True, slots=True)
class Place:
    """The cursor's line and its neighbours, at most `REACH` characters each way; lines come without their ends."""

    line_prefix: str
    """From the start of the line to the cursor; the end of it on a giant line."""
    line_rest: str
    """From the cursor to the end of the line; the beginning of it on a giant line."""
    above: tuple[str, ...] = ()
    """Whole lines above, the nearest one last."""
    below: tuple[str, ...] = ()
    """Whole lines below, the nearest one first."""

    @classmethod
    def at(cls, text: str, offset: int) -> Self:
        """The place of code-point offset `offset`."""
        start, end = max(0, offset - REACH), min(len(text), offset + REACH)
        *above, prefix = LINE_END.split(text[start:offset])
        rest, *below = LINE_END.split(text[offset:end])
        # the outermost line is cut unless the text ends there
        return cls(prefix, rest, tuple(above[1:] if start else above), tuple(below[:-1] if end < len(text) else below))

    def as_shown(self) -> Self:
        """The same place as the model sees it: tabs are spaces up to the next multiple of four columns."""
        prefix = self.line_prefix.expandtabs(TAB_WIDTH)
        line = (self.line_prefix + self.line_rest).expandtabs(TAB_WIDTH)
        above, below = (tuple(line.expandtabs(TAB_WIDTH) for line in lines) for lines in (self.above, self.below))
        return type(self)(prefix, line[len(prefix) :], above, below)

    @property
    def is_blank_line(self) -> bool:
        """Nothing but blanks on the line."""
        return not (self.line_prefix.strip() or self.line_rest.strip())

    @property
    def is_line_end(self) -> bool:
        """Nothing but blanks after the cursor."""
        return not self.line_rest.strip()

    @property
    def is_inside_word(self) -> bool:
        """A word goes on across the cursor."""
        return is_word(self.line_prefix[-1:]) and is_word(self.line_rest[:1])

    @property
    def is_deep_inside_word(self) -> bool:
        """Inside a word of a line that goes on: who types there corrects something, and wants no suggestion."""
        return self.is_inside_word and len(self.line_rest.rstrip()) > MAX_AFTER_WORD

    @property
    def indentation(self) -> str:
        """The blanks that the line begins with, as far as the cursor."""
        return self.line_prefix[: len(self.line_prefix) - len(self.line_prefix.lstrip(" \t"))]

    @property
    def line_above(self) -> str:
        """The nearest line above that is not blank, or nothing."""
        return next((line for line in reversed(self.above) if line.strip()), "")


def allowed_lines(place: Place) -> int | None:
    """Lines that a fill may have here: one on a line with text, any number (None) on a blank one."""
    return None if place.is_blank_line else 1


def is_word(char: str) -> bool:
    """A letter, a digit or an underscore; nothing is none."""
    return char.isalnum() or char == "_"
