"""What a model made of a selection, made fit for the place; or why it is not worth showing."""

from dg_lsp.context.snapshot import Snapshot
from dg_lsp.context.style import TextStyle, line_start
from dg_lsp.postprocess.candidate import Candidate, Reason, Rejection
from dg_lsp.postprocess.indent import deepen
from dg_lsp.postprocess.syntax import Surroundings
from dg_lsp.postprocess.trim import cut_loops, expand_indentation, goes_in_circles, to_text


def judge_rewrite(
    answer: bytes,
    *,
    snapshot: Snapshot,
    start: int,
    end: int,
    score: float,
    check_syntax: bool,
    must_mend: bool = False,
) -> Candidate | Rejection:
    """The text that may stand for `[start, end)` of the buffer, or the reason against it.

    Nothing outside of the stretch changes. A selection that ended with a line end still does, one that did not does
    not. With `check_syntax` the buffer must not parse worse than before, and with `must_mend` better where it did not
    parse.
    """
    text = to_text(answer)
    if text is None:
        return Rejection(Reason.NOT_TEXT)
    if not text.strip():
        return Rejection(Reason.EMPTY, text)
    if goes_in_circles(text) or cut_loops(text) != text:
        return Rejection(Reason.REPEATS_ITSELF, text)
    style = TextStyle.of(snapshot.text, start)
    old = style.to_model(snapshot.text[start:end])
    shaped = _with_end_of(old, deepen(expand_indentation(text), old))
    if shaped == old:
        return Rejection(Reason.UNCHANGED, text)
    if check_syntax and _is_worse(shaped, old, snapshot, start, end, style, must_mend=must_mend):
        return Rejection(Reason.SYNTAX_ERROR, text)
    line_prefix = snapshot.text[line_start(snapshot.text, start) : start]
    return Candidate(style.from_model(shaped, line_prefix), score)


def _with_end_of(old: str, new: str) -> str:
    """The new text with the blank line ends of the old one, no more and no fewer."""
    lines = [line.rstrip() for line in new.rstrip().split("\n")]
    return "\n".join(lines) + old[len(old.rstrip("\n")) :]


def _is_worse(
    new: str, old: str, snapshot: Snapshot, start: int, end: int, style: TextStyle, *, must_mend: bool
) -> bool:
    """Whether there are more syntax errors with the new text than with the old one; or, to mend, not fewer."""
    surroundings = Surroundings.around(snapshot, start, end, style)
    if surroundings is None:
        return False
    num_old, num_new = surroundings.num_errors(old), surroundings.num_errors(new)
    return num_new >= num_old > 0 if must_mend and num_old else num_new > num_old
