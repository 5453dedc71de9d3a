"""A line that opens a block and has no body yet: what is wanted there begins on the next line, one level deeper."""

import re

from dg_lsp.context.place import Place
from dg_lsp.context.style import TAB_WIDTH, TextStyle

_OPENER = re.compile(
    r"\s*(?:async\s+)?(?:def|class|if|elif|else|for|while|with|try|except|finally|match|case)\b[^#]*:\s*(?:#.*)?$"
)
"""Python's; in other languages a block ends with a bracket that editors close, and a fill would close again."""
_DEEPEST_UNIT = 8


def opening_of(text: str, offset: int, language: str) -> str:
    """The line end and the indentation that lead into the block opened before the cursor, or nothing.

    Nothing where the cursor's line goes on, opens no block, or has a body already.
    """
    if language != "python":
        return ""
    place = Place.at(text, offset)
    if not place.is_line_end or not _OPENER.fullmatch(place.line_prefix):
        return ""
    following = next((line for line in place.below if line.strip()), "")
    if _depth(following) > _depth(place.line_prefix):
        return ""
    own = place.line_prefix[: len(place.line_prefix) - len(place.line_prefix.lstrip())]
    style = TextStyle.of(text, offset)
    return style.line_end + own + ("\t" if style.uses_tabs else " " * _unit(place))


def _depth(line: str) -> int:
    return len(line.expandtabs(TAB_WIDTH)) - len(line.expandtabs(TAB_WIDTH).lstrip())


def _unit(place: Place) -> int:
    """Columns of one level: the shallowest indentation around, four where there is none."""
    depths = [_depth(line) for line in (*place.above, *place.below) if line.strip()]
    return min((depth for depth in depths if 1 < depth <= _DEEPEST_UNIT), default=TAB_WIDTH)
