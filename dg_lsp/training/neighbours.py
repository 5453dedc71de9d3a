"""Code of neighbouring files in the form in which a prompt shows it: signatures of what a file imports.

The form is that of `canvas.fim.snippet_ids`: a comment with the path, then code; last the path of the file itself.
"""

import posixpath
from collections.abc import Iterator, Mapping
from functools import cache

from dg_lsp.context.languages import language_of
from dg_lsp.context.tags import ALL, Import, definitions_of, imports_of
from dg_lsp.context.window import shown_path

MAX_FILES, MAX_NAMES = 12, 12  # shown of one file, as in the editor
MAX_BYTES = 100_000  # of a file that is parsed
PYTHON = "python"


def heading(path: str) -> str:
    """The line that precedes code of a file."""
    return f"{language_of(PYTHON).commented(shown_path(path))}\n"


def contexts_of(texts: Mapping[str, str]) -> list[list[str]]:
    """For each file of a package, given by path: its heading, then signatures of the files that it imports from.

    The file with the most imported names comes first.
    """

    @cache
    def definitions(path: str) -> dict[str, str]:
        return definitions_of(texts[path], PYTHON) if len(texts[path]) <= MAX_BYTES else {}

    def shown(path: str) -> Iterator[str]:
        wanted: dict[str, list[str]] = {}
        for one in imports_of(texts[path], PYTHON):
            if one.name not in ("", ALL):
                for target in _targets(one, path):
                    if target in texts and target != path and one.name in definitions(target):
                        wanted.setdefault(target, []).append(one.name)
                        break
        found = sorted(wanted.items(), key=lambda item: -len(item[1]))[:MAX_FILES]
        for target, names in found:
            lines = "\n".join(definitions(target)[name] for name in names[:MAX_NAMES]).strip("\n")
            yield f"{heading(target)}{lines}\n"

    return [[heading(path), *shown(path)] for path in texts]


def _targets(one: Import, path: str) -> Iterator[str]:
    """Paths that may hold the module of an import."""
    name = one.module.lstrip(".")
    depth, folder = len(one.module) - len(name), ""
    if depth:
        folder = posixpath.dirname(path)
        for _ in range(depth - 1):
            folder = posixpath.dirname(folder)
    module = posixpath.join(folder, name.replace(".", "/")) if name else folder
    yield from (f"{module}.py", f"{module}/__init__.py")
