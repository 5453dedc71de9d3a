"""The table of languages: grammar, comments, and endings that complete an unfinished line."""

import importlib
import re
from dataclasses import dataclass
from functools import cache

from tree_sitter import Language as Grammar


@dataclass(frozen=True, slots=True)
class Language:
    """One row of the table; the grammar is loaded when it is first used."""

    grammar_module: str = ""
    """Importable module of the grammar."""
    comment: str = ""
    """Line comment mark."""
    landmark: re.Pattern[str] | None = None
    """Matches a line from which a parser can start in the middle of a file, best with an empty `indentation`.

    None: syntax is not checked.
    """
    endings: tuple[str, ...] = ("",)
    """Texts that complete a valid beginning of a line; `{indentation}` is the line's own."""
    continuation: re.Pattern[str] | None = None
    """Matches a line that continues a statement above it."""
    block_opener: str = ""
    """End of a line that opens an indented block; empty for languages without significant indentation."""


PLAIN = Language()
LANGUAGES = {
    "python": Language(
        grammar_module="tree_sitter_python",
        comment="#",
        landmark=re.compile(r"^(?P<indentation> *)(?:async\s+def|def|class)\s+\w+\s*[(:\[]", re.MULTILINE),
        endings=("", ":", ": _", " import _", " else _", "\n{indentation}def _(): pass"),
        continuation=re.compile(r"\s*(?:elif|else|except|finally|case)\b|\s*[)\]}]"),
        block_opener=":",
    ),
}


def language_of(language_id: str) -> Language:
    """The row of an LSP language id; plain text for unknown ids."""
    return LANGUAGES.get(language_id, PLAIN)


@cache
def grammar_of(module: str) -> Grammar:
    """The grammar in `module`, cached: grammars are immutable."""
    return Grammar(importlib.import_module(module).language())
