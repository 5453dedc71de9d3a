"""What a model wrote, made fit for the place where it would stand; or why it is not worth showing."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from dg_lsp.context.document import Cursor, Snapshot, TextStyle, allowed_lines, line_start
from dg_lsp.context.languages import language_of
from dg_lsp.postprocess.syntax import Surroundings
from dg_lsp.postprocess.text_edits import (
    align,
    cut_at_margin,
    cut_lines,
    cut_loops,
    deepen,
    drop_below,
    drop_rest,
    expand_indentation,
    is_repetitive,
    repeats_above,
    skip_blank_lines,
    to_text,
    trim_blanks,
)


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
    LOW_CONFIDENCE = "low-confidence"
    """It is less likely to be right than an automatic completion has to be."""
    UNFINISHED = "unfinished"
    """The deadline came before anything was stable."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """Text to insert at the cursor, in the buffer's own line ends and indentation."""

    text: str
    score: float
    """Mean log probability per token, in nats; higher is better."""
    confidence: float = 1.0
    """Probability that the first line is what the user wants, as the model sees it; 1 where nobody asked it."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """A fill that is not shown."""

    reason: Reason
    text: str = ""


def judge(
    fill: bytes,
    *,
    snapshot: Snapshot,
    offset: int,
    cursor: Cursor,
    max_lines: int | None,
    score: float,
    check_syntax: bool,
) -> Candidate | Rejection:
    """The candidate that `fill` makes at `offset`, or the reason against it.

    `fill` is what was decoded before the end token; `cursor` is the cursor's lines at `offset`. `max_lines` None allows
    one line where there is text on the cursor's line, any number on a blank line. The candidate has the buffer's own
    line ends and indentation; inserting it at `offset` changes nothing else.
    """
    text = to_text(fill)
    if text is None:
        return Rejection(Reason.NOT_TEXT)
    place = cursor.as_shown()
    comment = language_of(snapshot.language).comment
    max_lines = allowed_lines(place) if max_lines is None else max_lines
    shown = _shaped(text, place, max_lines, comment)
    if not shown.strip():
        return Rejection(Reason.EMPTY, text)
    if is_repetitive(cut_lines(text, max_lines)):
        return Rejection(Reason.REPEATS_ITSELF, text)
    joined = _joined(shown, place, comment)
    if isinstance(joined, Rejection):
        return joined
    style = TextStyle.of(snapshot.text, offset)
    surroundings = Surroundings.around(snapshot, offset, offset, style) if check_syntax else None
    valid = surroundings.keep_valid(joined) if surroundings else joined
    if valid is None:
        return Rejection(Reason.SYNTAX_ERROR, joined)
    if surroundings and surroundings.strands_block(valid):
        return Rejection(Reason.INDENTATION, joined)
    return Candidate(style.from_model(valid, cursor.line_prefix), score)


def _shaped(text: str, place: Cursor, max_lines: int | None, comment: str) -> str:
    """Not more lines than allowed, indentation in line with the cursor, no loose blanks."""
    if place.line_prefix.strip():
        first, end, others = text.partition("\n")
        text = first + end + expand_indentation(others)
    else:
        text = expand_indentation(text)
    text = cut_lines(skip_blank_lines(text, place), max_lines)
    text = cut_loops(trim_blanks(text, is_line_end=place.is_line_end))
    aligned = align(text, place, comment)
    return cut_at_margin(aligned, place) if max_lines is None else aligned


def _joined(shown: str, place: Cursor, comment: str) -> str | Rejection:
    """Without what the buffer says already."""
    joined = drop_below(drop_rest(shown, place, comment), place)
    joined = trim_blanks(joined, is_line_end=place.is_line_end)
    if not joined.strip():
        return Rejection(Reason.REPEATS_SUFFIX, shown)
    return Rejection(Reason.REPEATS_PREFIX, shown) if repeats_above(joined, place) else joined


def rank(results: Iterable[Candidate | Rejection]) -> tuple[tuple[Candidate, ...], tuple[Rejection, ...]]:
    """Candidates by score, highest first, ties in order; of those that differ only by trailing blanks the best one."""
    candidates: list[Candidate] = []
    rejections: list[Rejection] = []
    for result in results:
        if isinstance(result, Candidate):
            candidates.append(result)
        else:
            rejections.append(result)
    best: dict[str, Candidate] = {}
    for candidate in sorted(candidates, key=lambda candidate: -candidate.score):
        best.setdefault(candidate.text.rstrip(), candidate)
    return tuple(best.values()), tuple(rejections)


def judge_rewrite(
    answer: bytes,
    *,
    snapshot: Snapshot,
    start: int,
    end: int,
    score: float,
    check_syntax: bool,
    must_fix_errors: bool = False,
) -> Candidate | Rejection:
    """The text that may stand for `[start, end)` of the buffer, or the reason against it.

    Nothing outside of the stretch changes. A selection that ended with a line end still does, one that did not does
    not. With `check_syntax` the buffer must not parse worse than before, and with `must_fix_errors` better where it did
    not parse.
    """
    text = to_text(answer)
    if text is None:
        return Rejection(Reason.NOT_TEXT)
    if not text.strip():
        return Rejection(Reason.EMPTY, text)
    if is_repetitive(text) or cut_loops(text) != text:
        return Rejection(Reason.REPEATS_ITSELF, text)
    style = TextStyle.of(snapshot.text, start)
    old = style.to_model(snapshot.text[start:end])
    shaped = _with_end_of(old, deepen(expand_indentation(text), old))
    if shaped == old:
        return Rejection(Reason.UNCHANGED, text)
    if check_syntax and _is_worse(shaped, old, snapshot, start, end, style, must_fix_errors=must_fix_errors):
        return Rejection(Reason.SYNTAX_ERROR, text)
    line_prefix = snapshot.text[line_start(snapshot.text, start) : start]
    return Candidate(style.from_model(shaped, line_prefix), score)


def _with_end_of(old: str, new: str) -> str:
    """The new text with the blank line ends of the old one, no more and no fewer."""
    lines = [line.rstrip() for line in new.rstrip().split("\n")]
    return "\n".join(lines) + old[len(old.rstrip("\n")) :]


def _is_worse(
    new: str, old: str, snapshot: Snapshot, start: int, end: int, style: TextStyle, *, must_fix_errors: bool
) -> bool:
    """The new text has more syntax errors than the old one; or, with `must_fix_errors`, not fewer."""
    surroundings = Surroundings.around(snapshot, start, end, style)
    if surroundings is None:
        return False
    num_old, num_new = surroundings.num_errors(old), surroundings.num_errors(new)
    return num_new >= num_old > 0 if must_fix_errors and num_old else num_new > num_old
