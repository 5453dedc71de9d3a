"""A fill's bytes to text, and its loose ends cut off."""

import codecs
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

from dg_lsp.context.document import LINE_END, TAB_WIDTH, Cursor, is_word

NUM_LOOPS = 3
"""A line that comes so many times in a row is a model going in circles."""

_LOOP = re.compile(r"(.{3,40}?)\1{4}")

_REFUSED_CATEGORIES = ("Cc", "Cs", "Zl", "Zp")
# what stands for broken bytes, and what makes code read otherwise than it runs
_REFUSED = "\ufffd\ufffe\uffff\ufeff\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


def to_text(fill: bytes) -> str | None:
    """The text with LF line ends, or None for what no one types: broken UTF-8, control and bidirectional characters.

    A character that the end of the fill cut apart is left out.
    """
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(fill, final=False)
    except UnicodeDecodeError:
        return None
    text = LINE_END.sub("\n", text)
    return None if any(_is_refused(char) for char in text) else text


def _is_refused(char: str) -> bool:
    return char not in "\n\t" and (char in _REFUSED or unicodedata.category(char) in _REFUSED_CATEGORIES)


def cut_lines(text: str, max_lines: int | None) -> str:
    """The first `max_lines` lines, or all."""
    return text if max_lines is None else "\n".join(text.split("\n")[:max_lines])


def cut_loops(text: str) -> str:
    """`text` up to the first of several equal lines in a row."""
    lines = text.split("\n")
    for i in range(len(lines) - NUM_LOOPS + 1):
        if any(char.isalnum() for char in lines[i]) and len({line.strip() for line in lines[i : i + NUM_LOOPS]}) == 1:
            return "\n".join(lines[: i + 1])
    return text


def is_repetitive(text: str) -> bool:
    """The same piece of a line, letters in it, comes five times in a row: a model that has lost its way."""
    pieces = (match[1] for line in text.split("\n") for match in _LOOP.finditer(line))
    return any(any(map(str.isalpha, piece)) for piece in pieces)


def trim_blanks(text: str, *, is_line_end: bool) -> str:
    """No blanks at line ends. What the cursor's line goes on with keeps its distance, unless nothing follows."""
    lines = text.split("\n")
    inner = [line.rstrip() for line in lines[:-1]]
    joined = "\n".join([*inner, lines[-1]])
    return joined.rstrip() if is_line_end else joined


def expand_indentation(text: str) -> str:
    """Leading tabs as spaces, as in everything the model was shown; tabs inside a line are left alone."""
    lines = []
    for line in text.split("\n"):
        body = line.lstrip(" \t")
        lines.append(line[: len(line) - len(body)].expandtabs(TAB_WIDTH) + body)
    return "\n".join(lines)


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


def skip_blank_lines(fill: str, place: Cursor) -> str:
    """`fill` without blank lines at its start, where indentation was typed and what follows is no less indented."""
    width = len(place.line_prefix)
    if not width or place.line_prefix.strip():
        return fill
    lines = fill.split("\n")
    first = next((i for i, line in enumerate(lines) if line.strip()), 0)
    return "\n".join(lines[first:]) if depth_of(lines[first]) >= width else fill


def align(fill: str, place: Cursor, comment: str = "") -> str:
    """`fill` so that typed indentation is not doubled and a block it opens is deeper than its first line.

    The first line may repeat the indentation before the cursor, or come on top of it: what would be deeper than the
    line above allows is a repetition. The other lines are absolute, unless the first opens a block and the next is
    no deeper than it: then the fill was written as if it stood at the margin.
    """
    width = len(place.line_prefix)
    first, *others = fill.split("\n")
    if not width or place.line_prefix.strip() or not first.strip():
        return fill
    depth, deepest = depth_of(first), _deepest(place.line_above)
    extra = next((extra for extra in (depth, max(0, depth - width)) if width + extra <= deepest), 0)
    first = " " * extra + first.lstrip(" ")
    follower = next((line for line in others if line.strip()), "")
    if _opens_block(first, comment) and follower and depth_of(follower) <= width + extra:
        others = [" " * width + line if line else line for line in others]
    return "\n".join([first, *others])


def cut_at_margin(fill: str, place: Cursor) -> str:
    """`fill` up to the blank lines before something new at the margin, where it began indented.

    Who asks inside of a function does not ask for the next one.
    """
    lines = fill.split("\n")
    if not depth_of(place.line_prefix + lines[0]):
        return fill
    for i in range(2, len(lines)):
        if lines[i].strip() and not depth_of(lines[i]) and not lines[i - 1].strip():
            return "\n".join(lines[:i]).rstrip()
    return fill


def deepen(text: str, old: str) -> str:
    """`text` as deep as what it stands for, where it was written as if that stood further left."""
    missing = depth_of(_first(old)) - depth_of(_first(text))
    if missing <= 0:
        return text
    return "\n".join(" " * missing + line if line.strip() else line for line in text.split("\n"))


def _first(text: str) -> str:
    return next((line for line in text.split("\n") if line.strip()), "")


def _opens_block(line: str, comment: str) -> bool:
    is_comment = bool(comment) and line.lstrip().startswith(comment)
    return line.endswith(":") and not is_comment and balance(line, comment).num_unmatched == 0


def depth_of(line: str) -> int:
    """Spaces that the line begins with."""
    return len(line) - len(line.lstrip(" "))


def _deepest(line_above: str) -> int:
    """Columns that a line may be indented by after this one."""
    line = line_above.rstrip()
    if line.endswith(":"):
        return depth_of(line) + TAB_WIDTH
    return depth_of(line) + 2 * TAB_WIDTH if line.endswith(("(", "[", "{")) else depth_of(line)


MIN_TELLING = 4
"""Letters and digits from which a line is no coincidence; `)`, `else:` and `0,` may well come twice."""

MIN_COPIED = 16
"""The same where the lines after it differ: many a method ends with `return False`."""


def drop_rest(fill: str, place: Cursor, comment: str = "") -> str:
    """`fill` without the head of the rest of the line, where it ends with that or has it inside.

    `print(|)` and `x)` give `x`, but `f(x)` stays whole: what is dropped must not open a bracket or a quote again.
    """
    rest = place.line_rest.rstrip()
    if not rest.strip():
        return fill

    def num_unmatched(text: str) -> int:
        return balance(place.line_prefix + text + rest, comment).num_unmatched

    before = num_unmatched(fill)
    for body, size in _overlaps(fill, rest):
        after = num_unmatched(body)
        if after < before or (after == before and _is_repeat(body, rest, size)):
            return body
    for at in range(1, len(fill)):
        if fill.startswith(rest, at):
            is_remark = bool(comment) and fill[at + len(rest) :].lstrip().startswith(comment)
            if num_unmatched(fill[:at]) < before or is_remark:
                return fill[:at]
    return fill


def _overlaps(fill: str, rest: str) -> Iterator[tuple[str, int]]:
    """What is left of `fill` without a head of `rest` at its end, and that head's length; the longest first."""
    for body in dict.fromkeys((fill, fill.rstrip())):
        for size in range(min(len(rest), len(body)), 0, -1):
            if body.endswith(rest[:size]):
                yield body[:-size], size


def _is_repeat(body: str, rest: str, size: int) -> bool:
    """Whether `size` characters that `rest` begins with, said before it too, are more than a coincidence."""
    head = rest[:size]
    if not head.strip():
        # one blank too many between two words; several are an indentation that the fill ended in
        return size == 1 and body[-1:].strip() != "" and rest[1:2].strip() != ""
    if is_word(rest[size - 1 : size]) and is_word(rest[size : size + 1]):
        return False
    return size >= MIN_TELLING or not (is_word(head[0]) and is_word(body[-1:]))


def drop_below(fill: str, place: Cursor) -> str:
    """`fill` up to the first line from which on it repeats what follows the cursor's line."""
    below = [line.rstrip() for line in place.below if line.strip()]
    if not (place.is_line_end and below):
        return fill
    lines = fill.split("\n")
    for i in range(len(lines)):
        standing = _as_standing(lines[i:], place if i == 0 else None)
        # the user may be about to write a short line such as `0,` twice
        is_typed = i == 0 and bool(place.line_prefix.strip())
        if lines[i].strip() and _is_copy(standing, below) and (not is_typed or _is_telling(standing[0])):
            return "\n".join(lines[:i])
    return fill


def repeats_above(fill: str, place: Cursor) -> bool:
    """Whether the lines right above the cursor's are these again."""
    above = [line.rstrip() for line in place.above if line.strip()]
    lines = _as_standing(fill.split("\n"), place)
    if not (lines and place.is_line_end and _is_telling(lines[0])):
        return False
    tail = above[-len(lines) :]
    return len(tail) == len(lines) and tail[1:] == lines[1:] and _is_same(lines[0], tail[0], place)


def _as_standing(lines: list[str], place: Cursor | None) -> list[str]:
    """The lines that are not blank, the first one together with what stands before the cursor."""
    first = (place.line_prefix if place else "") + lines[0]
    return [line.rstrip() for line in (first, *lines[1:]) if line.strip()]


def _is_copy(lines: list[str], below: list[str]) -> bool:
    """Whether `lines` are the first ones of `below`, wholly, or begin so with lines that cannot be a coincidence."""
    num_same = 0
    for ours, theirs in zip(lines, below, strict=False):
        if ours != theirs:
            break
        num_same += 1
    is_whole = num_same == min(len(lines), len(below))
    return num_same > 0 and (is_whole or num_same > 1 or _is_telling(lines[0], MIN_COPIED))


def _is_same(line: str, other: str, place: Cursor) -> bool:
    return line == other or (not place.line_prefix.strip() and line.strip() == other.strip())


def _is_telling(line: str, num_chars: int = MIN_TELLING) -> bool:
    return sum(char.isalnum() for char in line) >= num_chars
