"""A fill and what stands around it: what is there already is not said again.

Everything is compared as the model sees it: LF, spaces for tabs.
"""

from collections.abc import Iterator

from dg_lsp.context.place import Place, is_word
from dg_lsp.postprocess.balance import balance

MIN_TELLING = 4
"""Letters and digits from which a line is no coincidence; `)`, `else:` and `0,` may well come twice."""

MIN_COPIED = 16
"""The same where the lines after it differ: many a method ends with `return False`."""


def drop_rest(fill: str, place: Place, comment: str = "") -> str:
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


def drop_below(fill: str, place: Place) -> str:
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


def repeats_above(fill: str, place: Place) -> bool:
    """Whether the lines right above the cursor's are these again."""
    above = [line.rstrip() for line in place.above if line.strip()]
    lines = _as_standing(fill.split("\n"), place)
    if not (lines and place.is_line_end and _is_telling(lines[0])):
        return False
    tail = above[-len(lines) :]
    return len(tail) == len(lines) and tail[1:] == lines[1:] and _is_same(lines[0], tail[0], place)


def _as_standing(lines: list[str], place: Place | None) -> list[str]:
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


def _is_same(line: str, other: str, place: Place) -> bool:
    return line == other or (not place.line_prefix.strip() and line.strip() == other.strip())


def _is_telling(line: str, num_chars: int = MIN_TELLING) -> bool:
    return sum(char.isalnum() for char in line) >= num_chars
