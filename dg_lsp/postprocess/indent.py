"""A fill on a blank line against the indentation that is there already. Spaces only: tabs are converted elsewhere."""

from dg_lsp.context.place import Place
from dg_lsp.context.style import TAB_WIDTH
from dg_lsp.postprocess.balance import balance


def skip_blank_lines(fill: str, place: Place) -> str:
    """`fill` without blank lines at its start, where indentation was typed and what follows is no less indented."""
    width = len(place.line_prefix)
    if not width or place.line_prefix.strip():
        return fill
    lines = fill.split("\n")
    first = next((i for i, line in enumerate(lines) if line.strip()), 0)
    return "\n".join(lines[first:]) if depth_of(lines[first]) >= width else fill


def align(fill: str, place: Place, comment: str = "") -> str:
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


def cut_at_margin(fill: str, place: Place) -> str:
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
