"""Names that a Python text reads but nothing binds, by CPython's own symbol tables. Nothing of the text is executed."""

import builtins
import re
import symtable
import warnings
from collections.abc import Iterator

_STAR_IMPORT = re.compile(r"\bimport[\s\\(]*\*")
_DYNAMIC = frozenset(("exec", "globals", "locals", "vars", "builtins", "__builtins__", "__import__"))
"""Where one of these is read, names may be bound that no table has."""
_ALWAYS = frozenset(dir(builtins)) | {"WindowsError", "__file__", "__path__", "__cached__", "__annotations__"}
_ALWAYS |= {"__module__", "__qualname__", "__class__"}  # of a class


def unbound_names(text: str) -> frozenset[str]:
    """Names that are read where no binding can be seen from: of the module, an enclosing function, or the builtins.

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
    bound, read = set(_ALWAYS), set[str]()
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
        yield (one := waiting.pop())
        waiting.extend(one.get_children())
