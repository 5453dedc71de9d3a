"""Turns the output of a model into a candidate for its position in the buffer, or into a rejection with a reason."""

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
    """Why a fill is not shown."""

    EMPTY = "empty"
    """No text, or only blanks."""
    REPEATS_SUFFIX = "repeats-suffix"
    """It repeats the text after the cursor."""
    REPEATS_PREFIX = "repeats-prefix"
    """It repeats the lines before the cursor."""
    REPEATS_ITSELF = "repeats-itself"
    """It repeats a few words in a loop."""
    SYNTAX_ERROR = "syntax-error"
    """It adds a syntax error."""
    INDENTATION = "indentation"
    """The next line is deeper, but the fill opens no block."""
    UNCHANGED = "unchanged"
    """A rewrite equal to the original text."""
    NOT_TEXT = "not-text"
    """Its bytes are not UTF-8 or contain control characters."""
    LOW_CONFIDENCE = "low-confidence"
    """Its estimated probability of being right is too low for an automatic completion."""
    UNFINISHED = "unfinished"
    """The deadline passed before any line was stable."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """Text to insert at the cursor, in the buffer's own line ends and indentation."""

    text: str
    score: float
    """Mean log probability per token, in nats; higher is better."""
    confidence: float = 1.0
    """The model's probability that the first line is right; 1 where it is unknown."""


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
    """The candidate for `offset`, or the reason why the fill is not shown.

    `fill` is the decoded text before the end token, `cursor` the lines around `offset`. With `max_lines` None, a line
    with text gets one line and a blank line any number. The candidate has the buffer's line ends and indentation;
    inserting it at `offset` changes nothing else.
    """
    text = to_text(fill)
    if text is None:
        return Rejection(Reason.NOT_TEXT)
    buffer_cursor, cursor = cursor, cursor.as_shown()
    comment = language_of(snapshot.language).comment
    max_lines = allowed_lines(cursor) if max_lines is None else max_lines
    shown = _shaped(text, cursor, max_lines, comment)
    if not shown.strip():
        return Rejection(Reason.EMPTY, text)
    if is_repetitive(cut_lines(text, max_lines)):
        return Rejection(Reason.REPEATS_ITSELF, text)
    joined = _joined(shown, cursor, comment)
    if isinstance(joined, Rejection):
        return joined
    style = TextStyle.of(snapshot.text, offset)
    surroundings = Surroundings.around(snapshot, offset, offset, style) if check_syntax else None
    valid = surroundings.keep_valid(joined) if surroundings else joined
    if valid is None:
        return Rejection(Reason.SYNTAX_ERROR, joined)
    if surroundings and surroundings.strands_block(valid):
        return Rejection(Reason.INDENTATION, joined)
    return Candidate(style.from_model(valid, buffer_cursor.line_prefix), score)


def _shaped(text: str, cursor: Cursor, max_lines: int | None, comment: str) -> str:
    """Limits the number of lines, aligns the indentation and trims blanks."""
    if cursor.line_prefix.strip():
        first, end, others = text.partition("\n")
        text = first + end + expand_indentation(others)
    else:
        text = expand_indentation(text)
    text = cut_lines(skip_blank_lines(text, cursor), max_lines)
    text = cut_loops(trim_blanks(text, is_line_end=cursor.is_line_end))
    aligned = align(text, cursor, comment)
    return cut_at_margin(aligned, cursor) if max_lines is None else aligned


def _joined(shown: str, cursor: Cursor, comment: str) -> str | Rejection:
    """Removes text that the buffer already contains around the cursor."""
    joined = drop_below(drop_rest(shown, cursor, comment), cursor)
    joined = trim_blanks(joined, is_line_end=cursor.is_line_end)
    if not joined.strip():
        return Rejection(Reason.REPEATS_SUFFIX, shown)
    return Rejection(Reason.REPEATS_PREFIX, shown) if repeats_above(joined, cursor) else joined


def rank(results: Iterable[Candidate | Rejection]) -> tuple[tuple[Candidate, ...], tuple[Rejection, ...]]:
    """Distinct candidates (ignoring trailing blanks) by descending score, ties in order; and the rejections."""
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
    """The replacement of `[start, end)` of the buffer, or the reason why it is refused.

    A selection that ended with a line end still does, and vice versa. With `check_syntax` the buffer must not have more
    syntax errors than before; with `must_fix_errors` it must have fewer, if it had any.
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
    """The new text with exactly the trailing line ends of the old one."""
    lines = [line.rstrip() for line in new.rstrip().split("\n")]
    return "\n".join(lines) + old[len(old.rstrip("\n")) :]


def _is_worse(
    new: str, old: str, snapshot: Snapshot, start: int, end: int, style: TextStyle, *, must_fix_errors: bool
) -> bool:
    """True if the new text causes more syntax errors than the old one, or not fewer if errors must be fixed."""
    surroundings = Surroundings.around(snapshot, start, end, style)
    if surroundings is None:
        return False
    num_old, num_new = surroundings.num_errors(old), surroundings.num_errors(new)
    return num_new >= num_old > 0 if must_fix_errors and num_old else num_new > num_old
