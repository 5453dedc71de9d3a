"""What the Python that runs this program accepts of a Python text, and which names the text binds.

It decides where a result must not break a file. Nothing of a text is executed.
"""

import ast
import builtins
import re
import symtable
import warnings
from collections.abc import Callable, Iterator
from enum import IntEnum
from functools import lru_cache

from dg_lsp.context.document import LINE_END, Snapshot, indentation_of, line_start
from dg_lsp.context.languages import language_of
from dg_lsp.postprocess.brackets import OPENER_OF, balance

PYTHON = language_of("python")
MAX_SHORTER = 6  # most lines that are removed from the end of a fill to make it valid
MAX_PARSED = 100_000  # characters of a Python file that CPython parses with each fill: they may take 0.1 s a time
_STAR_IMPORT = re.compile(r"\bimport[\s\\(]*\*")
_DYNAMIC = frozenset(("exec", "globals", "locals", "vars", "builtins", "__builtins__", "__import__"))
"""Where one of these is read, names may be bound that no table has."""
_ALWAYS = frozenset(dir(builtins)) | {"WindowsError", "__file__", "__path__", "__cached__", "__annotations__"}
_ALWAYS |= {"__module__", "__qualname__", "__class__"}  # of a class


class Validity(IntEnum):
    """What CPython accepts of a text."""

    INVALID = 0
    PARSES = 1  # with an error that its compiler finds: `return` outside of a function
    COMPILES = 2


def python_validity(text: str) -> Validity:
    """What the Python that runs this program accepts of `text`. Nothing of it is executed."""
    if _accepts(text, 0):
        return Validity.COMPILES
    return Validity.PARSES if parses(text) else Validity.INVALID


def parses(text: str) -> bool:
    """Whether it is more than `INVALID`; takes a third of the time of `python_validity` where it is."""
    return _accepts(text, ast.PyCF_ONLY_AST)


def _accepts(text: str, flags: int) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compile(text.removeprefix("\ufeff"), "<buffer>", "exec", flags, dont_inherit=True)
        except (SyntaxError, ValueError, RecursionError, MemoryError):  # a NUL, a lone surrogate, deep nesting
            return False
    return True


def keep_parsing(
    fill: str, shown: Callable[[str], str], snapshot: Snapshot, offset: int, *, may_lack_body: bool
) -> str | None:
    """The fill, or its longest beginning of whole lines, with which CPython parses the text; None without one.

    `shown` gives a fill in the style of the text. A header may lack its body with `may_lack_body`. Where no fill makes
    the text parse, because it has an error elsewhere, every fill is kept. A cell of a notebook is a text of its own.
    """
    text = snapshot.alone().text
    before, after = text[: offset - snapshot.num_before], text[offset - snapshot.num_before :]
    if len(text) > MAX_PARSED:
        return fill
    lines = fill.split("\n")
    versions = ["\n".join(lines[:num]).rstrip() for num in range(len(lines), 0, -1)]
    for version in versions[: MAX_SHORTER + 1]:
        begun = before + shown(version)
        if version.strip() and (
            parses(begun + after) or (may_lack_body and parses(begun + _missing_body(begun) + after))
        ):
            return version
    return None if _can_parse(before, after) else fill


def _missing_body(text: str) -> str:
    """What a header or decorator at the end of a text lacks."""
    line = text.rsplit("\n", maxsplit=1)[-1]
    indentation = indentation_of(line)
    if line.lstrip().startswith("@"):
        return f"\n{indentation}def _(): pass"
    handler = f"\n{indentation}finally: pass" if line.strip() == "try:" else ""
    return f"\n{indentation} pass{handler}"


@lru_cache(maxsize=2)  # all candidates of a request have the same gap
def _can_parse(before: str, after: str) -> bool:
    """Some text between the two, or in place of the line there, makes the whole parse."""
    whole = balance(before + after, PYTHON)
    openers = "".join(OPENER_OF[closer] for closer in reversed(whole.strays))
    typed = balance(before, PYTHON).quote
    left = (typed if len(typed) == 1 else whole.quote) + whole.closers
    texts = (f"{text}{left}{end}{openers}" for text in ("", "_") for end in ("", ":"))
    if any(parses(before + text + after) for text in texts):
        return True
    start = line_start(before, len(before))
    above = before[:start] + indentation_of(before[start:])
    below = after[len(LINE_END.split(after, maxsplit=1)[0]) :]
    without_line = balance(above + below, PYTHON)
    ends = without_line.quote + without_line.closers
    # inside brackets no line is needed
    is_inside = bool(ends or balance(above, PYTHON).closers)
    heads = ("_", "") if is_inside else ("pass", "if _:", "try:", "except:", "except: pass", "def _(): pass")
    return any(parses(above + text + ends + below) for text in heads)


def unbound_names(text: str) -> frozenset[str]:
    """Names that a Python text reads where no binding of the module, an enclosing function or the builtins is seen.

    CPython's own symbol tables find them; nothing of the text is executed.
    The order of binding and reading does not matter. None of a text that has no tables, since it does not parse, and
    of one whose names cannot be known: with a star import, or code that binds names while it runs.
    """
    if _STAR_IMPORT.search(text):
        return frozenset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            module = symtable.symtable(text.removeprefix("\ufeff"), "<buffer>", "exec")
        except (SyntaxError, ValueError, RecursionError, MemoryError):  # a NUL, a lone surrogate, deep nesting
            return frozenset()
    bound = set(_ALWAYS)
    read = set[str]()
    for table in _tables(module):
        for symbol in table.get_symbols():
            is_of_module = table is module or symbol.is_declared_global()
            if is_of_module and (symbol.is_assigned() or symbol.is_imported() or symbol.is_annotated()):
                bound.add(symbol.get_name())
            if symbol.is_global() and symbol.is_referenced():
                read.add(symbol.get_name())
    return frozenset() if read & _DYNAMIC else frozenset(read - bound)


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    waiting = [table]
    while waiting:
        yield (current := waiting.pop())
        waiting.extend(current.get_children())
