"""The table of languages: grammar, comments, how blocks open, and endings that complete an unfinished line."""

import importlib
import re
from dataclasses import dataclass
from functools import cache

from tree_sitter import Language as Grammar

from dg_lsp.context.document import TAB_WIDTH, Cursor, TextStyle, depth_of, indentation_of

_DEEPEST_UNIT = 8  # columns of one indentation level


@dataclass(frozen=True, slots=True)
class Language:
    """One row of the table; the grammar is loaded when it is first used."""

    grammar_module: str = ""  # importable
    comment: str = ""  # mark of a line comment
    landmark: re.Pattern[str] | None = None
    """Matches a line from which a parser can start in the middle of a file, best with an empty `indentation`.

    None: syntax is not checked.
    """
    endings: tuple[str, ...] = ("",)  # complete a valid beginning of a line; `{indentation}` is the line's own
    continuation: re.Pattern[str] | None = None  # matches a line that continues a statement above it
    block_opener: str = ""  # end of a line that opens an indented block; empty where indentation has no meaning
    block_header: re.Pattern[str] | None = None
    """Matches a line that opens a block whose end needs no text: elsewhere editors insert a closing bracket."""


PLAIN = Language()
LANGUAGES = {
    "python": Language(
        grammar_module="tree_sitter_python",
        comment="#",
        landmark=re.compile(r"^(?P<indentation> *)(?:async\s+def|def|class)\s+\w+\s*[(:\[]", re.MULTILINE),
        endings=("", ":", ": _", " import _", " else _", "\n{indentation}def _(): pass"),
        continuation=re.compile(r"\s*(?:elif|else|except|finally|case)\b|\s*[)\]}]"),
        block_opener=":",
        block_header=re.compile(
            r"\s*(?:async\s+)?(?:def|class|if|elif|else|for|while|with|try|except|finally|match|case)\b"
            r"[^#]*:\s*(?:#.*)?$"
        ),
    ),
}


def language_of(language_id: str) -> Language:
    """The row of an LSP language id; plain text for unknown ids."""
    return LANGUAGES.get(language_id, PLAIN)


@cache
def grammar_of(module: str) -> Grammar:
    """The grammar in `module`, cached: grammars are immutable."""
    return Grammar(importlib.import_module(module).language())


def opening_of(text: str, offset: int, language_id: str) -> str:
    """The line end and indentation that begin the body of the block opened before the cursor, or empty.

    Empty if text follows the cursor, the line opens no block, or the block has a body.
    """
    header, cursor = language_of(language_id).block_header, Cursor.at(text, offset)
    if not header or not cursor.is_line_end or not header.fullmatch(cursor.line_prefix):
        return ""
    shown = cursor.as_shown()
    depths = [depth_of(line) for line in (*shown.below, *shown.above) if line.strip()]
    if any(line.strip() for line in shown.below) and depths[0] > depth_of(shown.line_prefix):
        return ""
    unit = min((depth for depth in depths if 1 < depth <= _DEEPEST_UNIT), default=TAB_WIDTH)
    style = TextStyle.of(text, offset)
    return style.line_end + indentation_of(cursor.line_prefix) + ("\t" if style.uses_tabs else " " * unit)
