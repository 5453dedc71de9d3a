"""Brackets and quotes of a text, and which of them have no partner. Without a grammar."""

import re
from dataclasses import dataclass
from functools import lru_cache

from dg_lsp.context.document import indentation_of
from dg_lsp.context.languages import PLAIN, Language

CLOSER_OF = {"(": ")", "[": "]", "{": "}"}
OPENERS, CLOSERS = tuple(CLOSER_OF), tuple(CLOSER_OF.values())
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
    mismatch: tuple[int, int] | None = None
    """Offsets of the first bracket or string that is closed wrongly, and of what closes it."""

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
    at = 0
    strays = ""
    quote = ""
    first_stray: int | None = None
    mismatch: tuple[int, int] | None = None
    next_piece = _code_piece(language).search
    while match := next_piece(text, at):
        piece = match[0]
        at = match.end()
        if piece in CLOSER_OF:
            opened.append((CLOSER_OF[piece], match.start()))
        elif piece in language.quotes or piece in language.multiline:
            end = _string_piece(piece, piece in language.multiline).match(text, at)
            if end is None:
                quote = piece
                break
            if end[0][-1] == "\n":
                num_cut += 1
                mismatch = mismatch or (match.start(), match.start())
            at = end.end()
        elif opened and piece == opened[-1][0]:
            opened.pop()
        elif piece in CLOSERS:
            strays += piece
            first_stray = match.start() if first_stray is None else first_stray
            if opened:  # otherwise it may begin above the text
                mismatch = mismatch or (opened[-1][1], match.start())
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


def without_long_strings(text: str, language: Language) -> tuple[str, int]:
    """`text` with form feeds in place of strings and comments of several lines and of the rest of their last line.

    The lines of such a string are no code: neither their words nor their indentation have a meaning. A form feed is a
    blank and no indentation. With the offset of the one in which the text ends, else the text's length.
    """
    parts = list[str]()
    done = 0
    start = len(text)
    end = 0
    for match in _long_piece(language).finditer(text):
        start, end = match.span()
        if "\n" in text[start : end - 1]:
            end = text.find("\n", end) if end < len(text) else end
            end = len(text) if end < 0 else end
            if end > done:
                lines = text[max(start, done) : end].split("\n")
                parts += text[done:start], "\n".join("\f" * len(line) for line in lines)
                done = end
    unfinished = start if end == len(text) else len(text)
    return "".join((*parts, text[done:])), unfinished


@lru_cache(None)
def _long_piece(language: Language) -> re.Pattern[str]:
    """A string or a comment, up to the end of the text where it does not end, or an escaped character."""
    pieces = []
    for quote in sorted((*language.quotes, *language.multiline), key=len, reverse=True):
        char, line_end, end = (quote[0], "", r"\Z") if quote in language.multiline else (quote[0], r"\n", "$")
        # no possessive group, which `re` matches wrongly before Python 3.11.5 (issue 100061)
        pieces.append(rf"{quote}(?:[^\\{char}{line_end}]++|\\.|(?!{quote}){char})*(?:{quote}|{end})")
    return re.compile("|".join([*_marked(language), *pieces]), re.DOTALL | re.MULTILINE)


@lru_cache(None)
def _code_piece(language: Language) -> re.Pattern[str]:
    """The next bracket or quote, or what may contain some without a meaning: a comment, a character, a short string."""
    pieces = _marked(language)
    for quote in sorted((*language.quotes, *language.multiline), key=len, reverse=True):
        line_end = "" if quote in language.multiline else r"\n"
        pieces += [rf"{quote}[^\\{quote[0]}{line_end}]*+{quote}", re.escape(quote)]
    # no class of characters: where each alternative begins with a character, `re` looks for these alone
    return re.compile("|".join([*pieces, *map(re.escape, (*OPENERS, *CLOSERS))]), re.DOTALL | re.MULTILINE)


def _marked(language: Language) -> list[str]:
    """Patterns of escaped characters, comments, raw strings and characters."""
    parts = [r"\\."]
    if language.block_comment:
        start, end = map(re.escape, language.block_comment)
        parts.append(rf"{start}.*?(?:{end}|\Z)")
    if language.comment:
        parts.append(rf"{language.comment_start or re.escape(language.comment)}[^\n]*")
    if language.raw_string:
        parts.append(language.raw_string)
    if language.has_chars:
        parts.append(r"'(?:\\[^\n']{1,10}|\\'|[^\\'\n])'")
    return parts


@lru_cache(None)
def _string_piece(quote: str, is_multiline: bool) -> re.Pattern[str]:
    """Everything up to the end of a string, which may be a line end."""
    content = r"\\.|[^\\]" if is_multiline else r"\\.|[^\\\n]"
    return re.compile(f"(?:{content})*?(?:{re.escape(quote)}{'' if is_multiline else '|' + chr(92) + 'n'})", re.DOTALL)
