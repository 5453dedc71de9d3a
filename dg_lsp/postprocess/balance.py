"""Brackets and quotes of a few lines, without a grammar."""

import re
from dataclasses import dataclass

_CLOSERS = {"(": ")", "[": "]", "{": "}"}
_PIECE = re.compile(r'"""|\'\'\'|\\.|[\'"`()\[\]{}\n]', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Balance:
    """What a text leaves open, and what it closes without having opened it."""

    closers: str
    """What would close the open brackets, in order."""
    quote: str
    """The quotes of a string that the text ends in, or nothing."""
    num_stray: int
    """Closing brackets without an opening one, and strings that a line end broke off."""

    @property
    def num_unmatched(self) -> int:
        """Brackets and quotes that lack their partner."""
        return len(self.closers) + bool(self.quote) + self.num_stray


def balance(text: str, comment: str = "") -> Balance:
    """The balance of `text`; `comment` begins a comment that ends with its line. Braces in f-strings are text."""
    closers: list[str] = []
    quote, num_stray, at = "", 0, 0
    while match := _next_piece(text, at, quote, comment):
        piece, at = match
        if quote:
            quote, num_stray = _in_string(piece, quote, num_stray)
        elif piece in _CLOSERS:
            closers.append(_CLOSERS[piece])
        elif piece[0] in "'\"`":
            quote = piece
        elif closers and piece == closers[-1]:
            closers.pop()
        elif piece in ")]}":
            num_stray += 1
    return Balance("".join(reversed(closers)), quote, num_stray)


def _in_string(piece: str, quote: str, num_stray: int) -> tuple[str, int]:
    """The open quote and the stray count after `piece`."""
    if piece == quote:
        return "", num_stray
    if piece == "\n" and len(quote) == 1 and quote != "`":
        return "", num_stray + 1
    if len(quote) == 1 and piece == quote * 3:
        return "", num_stray  # the end of one string and an empty one
    return quote, num_stray


def _next_piece(text: str, at: int, quote: str, comment: str) -> tuple[str, int] | None:
    """The next bracket, quote or line end from `at`, and the offset behind it; comments are passed over."""
    match = _PIECE.search(text, at)
    if comment and not quote:
        begin = text.find(comment, at, match.start() if match else len(text))
        if begin >= 0:
            end = text.find("\n", begin)
            return ("\n", end + 1) if end >= 0 else None
    return (match[0], match.end()) if match else None
