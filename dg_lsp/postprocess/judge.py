"""What a model wrote, made fit for the place where it would stand; or why it is not worth showing."""

from dg_lsp.context.place import Place, allowed_lines
from dg_lsp.context.snapshot import Snapshot
from dg_lsp.context.style import TextStyle
from dg_lsp.postprocess.candidate import Candidate, Reason, Rejection
from dg_lsp.postprocess.indent import align, cut_at_margin, skip_blank_lines
from dg_lsp.postprocess.join import drop_below, drop_rest, repeats_above
from dg_lsp.postprocess.language import language_of
from dg_lsp.postprocess.syntax import Surroundings
from dg_lsp.postprocess.trim import cut_lines, cut_loops, expand_indentation, goes_in_circles, to_text, trim_blanks


def judge(
    fill: bytes, *, snapshot: Snapshot, offset: int, max_lines: int | None, score: float, check_syntax: bool
) -> Candidate | Rejection:
    """The candidate that `fill` makes at `offset`, or the reason against it.

    `fill` is what was decoded before the end token. `max_lines` None lets the place decide: one line where there is
    text on the cursor's line, any number on a blank line. The candidate has the buffer's own line ends and
    indentation; inserting it at `offset` changes nothing else.
    """
    text = to_text(fill)
    if text is None:
        return Rejection(Reason.NOT_TEXT)
    standing = Place.at(snapshot.text, offset)
    place = standing.as_shown()
    comment = language_of(snapshot.language).comment
    max_lines = allowed_lines(place) if max_lines is None else max_lines
    shown = _shaped(text, place, max_lines, comment)
    if not shown.strip():
        return Rejection(Reason.EMPTY, text)
    if goes_in_circles(cut_lines(text, max_lines)):
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
    return Candidate(style.from_model(valid, standing.line_prefix), score)


def _shaped(text: str, place: Place, max_lines: int | None, comment: str) -> str:
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


def _joined(shown: str, place: Place, comment: str) -> str | Rejection:
    """Without what the buffer says already."""
    joined = drop_below(drop_rest(shown, place, comment), place)
    joined = trim_blanks(joined, is_line_end=place.is_line_end)
    if not joined.strip():
        return Rejection(Reason.REPEATS_SUFFIX, shown)
    return Rejection(Reason.REPEATS_PREFIX, shown) if repeats_above(joined, place) else joined
