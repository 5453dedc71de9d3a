"""What is known of a language: its grammar, its comments, and how an unfinished line of it could go on."""

import importlib
import re
from dataclasses import dataclass
from functools import cache

from tree_sitter import Language as Grammar


@dataclass(frozen=True, slots=True)
class Language:
    """One row of the table below; the grammar is a wheel of its own, loaded when it is first needed."""

    grammar_module: str = ""
    """Importable module of the grammar."""
    comment: str = ""
    """What begins a comment that ends with its line."""
    landmark: re.Pattern[str] | None = None
    """A line from which a parser can start in the middle of a file, best where its `indentation` is empty.

    None means that syntax is not checked.
    """
    endings: tuple[str, ...] = ("",)
    """Ways to finish a line that is right so far; `{indentation}` is the line's own."""
    continuation: re.Pattern[str] | None = None
    """A line that belongs to a statement above it and means nothing alone."""
    block_opener: str = ""
    """What a line ends with that the next one may be deeper than; only where indentation means something."""


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
    """The row of an LSP language id; plain text for one that is not in the table."""
    return LANGUAGES.get(language_id, PLAIN)


@cache
def grammar_of(module: str) -> Grammar:
    """The grammar in `module`; immutable, so one for the whole process."""
    return Grammar(importlib.import_module(module).language())
