"""What a Python buffer imports, statement by statement: the rest of it may be half-written."""

import ast
import re
from dataclasses import dataclass

LOOKED_AT = 40_000
"""Characters of a buffer's beginning: imports stand there."""
_STATEMENT = re.compile(
    r"^[ \t]*((?:from[ \t]+[.\w]+[ \t]+import[ \t]+|import[ \t]+)(?:\([^)]*\)|(?:[^\n\\(]|\\\n)+))", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Import:
    """One name that a statement brings."""

    module: str
    level: int
    """Dots before the module."""
    name: str
    """What is taken from the module; empty for the module itself, `*` for all of it."""
    bound: str
    """What it is called here; dotted for a module that is named whole."""


def imports_of(text: str) -> tuple[Import, ...]:
    """In the order of the buffer; what does not parse, alone, is left out."""
    found: list[Import] = []
    for match in _STATEMENT.finditer(text[:LOOKED_AT]):
        try:
            [statement] = ast.parse(match[1].strip()).body
        except (SyntaxError, ValueError):
            continue
        if isinstance(statement, ast.Import):
            found += [Import(one.name, 0, "", one.asname or one.name) for one in statement.names]
        elif isinstance(statement, ast.ImportFrom):
            module, level = statement.module or "", statement.level
            found += [Import(module, level, one.name, one.asname or one.name) for one in statement.names]
    return tuple(found)
