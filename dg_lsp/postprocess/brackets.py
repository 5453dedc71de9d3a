"""Brackets and quotes of a text, and which of them have no partner. Without a grammar."""

import re
from dataclasses import dataclass
from functools import lru_cache

from dg_lsp.context.document import indentation_of
from dg_lsp.context.languages import PLAIN, Language

CLOSER_OF = {"(": ")", "[": "]", "{": "}"}
OPENERS, CLOSERS = tuple(CLOSER_OF), tuple(CLOSER_OF.values())
_BRACKETS = frozenset((*OPENERS, *CLOSERS))
_OPENER_OF = dict(zip(CLOSERS, OPENERS, strict=True))


@dataclass(frozen=True, slots=True)
class Balance:
    """Open brackets and quotes of a text, and closing ones without a partner."""

    closers: str  # brackets that close the open ones, in order
    quote: str  # the opening quotes of an unfinished string, or empty
    num_stray: int  # closing brackets without an opening one, and strings cut off by a line end
    openings: tuple[int, ...] = ()  # offsets of the open brackets, in the order of `closers`
    strays: str = ""  # closing brackets without an opening one
    first_stray: int | None = None  # offset of the first one
    mismatch: tuple[int, int] | None = None  # offsets of what is first closed wrongly, and of what closes it

    @property
    def openers(self) -> str:
        """Brackets that open the stray ones, in order."""
        return "".join(_OPENER_OF[closer] for closer in reversed(self.strays))

    @property
    def num_unmatched(self) -> int:
        """Number of brackets and quotes without a partner."""
        return len(self.closers) + bool(self.quote) + self.num_stray


@lru_cache(maxsize=64)  # a judgement needs the same ones several times
def balance(text: str, language: Language = PLAIN) -> Balance:
    """The balance of `text`, without comments. Braces in f-strings and in template strings count as text."""
    opened: list[tuple[str, int]] = []
    num_cut = 0
    strays = ""
    quote = ""
    first_stray: int | None = None
    mismatch: tuple[int, int] | None = None
    for match in _piece(language).finditer(text):
        piece = match[0]
        if piece in CLOSER_OF:
            opened.append((CLOSER_OF[piece], match.start()))
        elif opened and piece == opened[-1][0]:
            opened.pop()
        elif piece in CLOSERS:
            strays += piece
            first_stray = match.start() if first_stray is None else first_stray
            if opened:  # otherwise it may begin above the text
                mismatch = mismatch or (opened[-1][1], match.start())
        elif match.lastindex is None and piece.startswith(_quotes(language)):
            if match.end() == len(text):
                quote = next(mark for mark in _quotes(language) if piece.startswith(mark))
            else:
                num_cut += 1
                mismatch = mismatch or (match.start(), match.start())
    opened.reverse()
    closers = "".join(closer for closer, _ in opened)
    openings = tuple(offset for _, offset in opened)
    return Balance(closers, quote, len(strays) + num_cut, openings, strays, first_stray, mismatch)


def with_closers(before: str, fill: str, num: int, language: Language) -> str:
    """A fill behind `before` with its `num` innermost open brackets closed, those of blocks on lines of their own."""
    text = before + fill
    closed = fill.rstrip()
    unmatched = balance(text, language)
    for closer, opening in zip(unmatched.closers[:num], unmatched.openings, strict=False):
        rest, _, below = text[opening + 1 :].partition("\n")
        is_block = language.block_end is not None and not rest.strip() and bool(below.strip())
        line = text[text.rfind("\n", 0, opening) + 1 :]
        closed += f"\n{indentation_of(line)}{closer}" if is_block else closer
    return closed


def without_long_strings(text: str, language: Language) -> str:
    """`text` with form feeds in place of strings and comments of several lines and of the rest of their last line.

    The lines of such a string are no code: neither their words nor their indentation have a meaning. A form feed is a
    blank and no indentation.
    """
    parts = list[str]()
    done = 0
    for match in _piece(language).finditer(text):
        if match[0] in _BRACKETS:
            continue
        start, end = match.span()
        if "\n" in text[start : end - 1]:
            end = text.find("\n", end) if end < len(text) else end
            end = len(text) if end < 0 else end
            if end > done:
                lines = text[max(start, done) : end].split("\n")
                parts += text[done:start], "\n".join("\f" * len(line) for line in lines)
                done = end
    return "".join((*parts, text[done:]))


@lru_cache(None)
def _piece(language: Language) -> re.Pattern[str]:
    """A bracket, or what may contain some without a meaning: a comment, a string, a character, an escaped one.

    A string that has no end goes on to the end of its line or of the text; it is the only piece with a quote at its
    start that has no group.
    """
    pieces = [r"\\."]
    if language.block_comment:
        start, end = map(re.escape, language.block_comment)
        pieces.append(rf"{start}.*?(?:{end}|\Z)")
    if language.comment:
        pieces.append(rf"{language.comment_start or re.escape(language.comment)}[^\n]*")
    if language.raw_string:
        pieces.append(f"({language.raw_string})")
    if language.has_chars:
        pieces.append(r"'(?:\\[^\n']{1,10}|\\'|[^\\'\n])'")
    for quote in _quotes(language):
        line_end, end = ("", r"\Z") if quote in language.multiline else (r"\n", "$")
        # no possessive group, which `re` matches wrongly before Python 3.11.5 (issue 100061)
        pieces.append(rf"{quote}(?:[^\\{quote[0]}{line_end}]++|\\(?:.|\Z)|(?!{quote}){quote[0]})*(?:({quote})|{end})")
    # no class of characters: where each alternative begins with a character, `re` looks for these alone
    return re.compile("|".join([*pieces, *map(re.escape, _BRACKETS)]), re.DOTALL | re.MULTILINE)


@lru_cache(None)
def _quotes(language: Language) -> tuple[str, ...]:
    return tuple(sorted((*language.quotes, *language.multiline), key=len, reverse=True))
