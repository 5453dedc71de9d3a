"""Where a Python file's imports lead inside of a workspace, and what is defined there.

An index that is made as it is asked: a file is read when something imports it, and again when it has changed. What may
be read, and how, is for whoever hands over the files to say.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dg_lsp.symbols.imports import Import, imports_of
from dg_lsp.symbols.outline import Outline, outline_of

MAX_MODULES = 12
"""Files that one buffer's imports are looked up in."""
MAX_NAMES = 12
"""Definitions shown of one file."""
SOURCES = ("", "src", "lib")
"""Folders of a root that modules may lie in."""


class Files(Protocol):
    """The workspace's files, as far as they may be seen."""

    def stamp(self, path: Path) -> object | None:
        """Changes when the file does; None for one that is not there or must not be shown."""
        ...

    def text(self, path: Path) -> str | None:
        """The file's text; None for one that cannot be read."""
        ...


@dataclass(frozen=True, slots=True)
class Definitions:
    """What a buffer takes from one file."""

    path: Path
    lines: str
    num_mentioned: int
    """Of its names, how many are used near the cursor."""


@dataclass(frozen=True, slots=True)
class _Read:
    stamp: object
    outline: Outline
    imports: tuple[Import, ...]


class Workspace:
    """The index. Owned by the server's session."""

    def __init__(self, roots: Sequence[Path], files: Files) -> None:
        self._roots = tuple(roots)
        self._files = files
        self._read: dict[Path, _Read] = {}

    def definitions(self, path: Path, imports: Sequence[Import], near: str) -> tuple[Definitions, ...]:
        """What the imports of the file at `path` lead to; files whose names are used in `near` come first."""
        words = frozenset(re.findall(r"\w+", near))
        wanted: dict[Path, dict[str, None]] = {}
        for one in imports:
            for target, names in self._targets(one, path, near):
                if target != path and (target in wanted or len(wanted) < MAX_MODULES):
                    wanted.setdefault(target, {}).update(dict.fromkeys(names))
        found = [self._shown(target, list(names), words) for target, names in wanted.items()]
        return tuple(sorted((one for one in found if one.lines), key=lambda one: -one.num_mentioned))

    def _shown(self, path: Path, names: list[str], words: frozenset[str]) -> Definitions:
        read = self._file(path)
        definitions = read.outline.definitions if read is not None else {}
        mentioned = [name for name in names if name in definitions and name in words]
        others = [name for name in names if name in definitions and name not in words]
        kept = [*mentioned, *others][:MAX_NAMES]
        return Definitions(path, "\n".join(definitions[name] for name in kept), len(mentioned))

    def _targets(self, one: Import, path: Path, near: str) -> Iterator[tuple[Path, list[str]]]:
        """Files that an import leads to, and the names that are wanted of each."""
        if one.name in ("", "*"):
            found = self._find(one.module, one.level, path)
            read = self._file(found) if found is not None else None
            if found is not None and read is not None:
                every = list(read.outline.definitions)
                yield found, every if one.name else _attributes(one.bound, near)
            return
        module = self._find(one.module, one.level, path)
        if module is not None and (defined := self._defining(one.name, module)) is not None:
            yield defined, [one.name]
            return
        inner = f"{one.module}.{one.name}" if one.module else one.name
        if (submodule := self._find(inner, one.level, path)) is not None:
            yield submodule, _attributes(one.bound, near)

    def _defining(self, name: str, module: Path) -> Path | None:
        """The file that defines a module's name: its own, or the one that it takes the name from itself."""
        read = self._file(module)
        if read is None:
            return None
        if name in read.outline.definitions:
            return module
        for one in read.imports:
            if one.bound == name and one.name == name:
                source = self._find(one.module, one.level, module)
                inner = self._file(source) if source is not None else None
                if inner is not None and name in inner.outline.definitions:
                    return source
        return None

    def _find(self, module: str, level: int, path: Path) -> Path | None:
        """The file of a module as the file at `path` names it; None outside of the workspace."""
        parts = [part for part in module.split(".") if part]
        if level:
            folders = [path.parents[level - 1]] if level <= len(path.parents) else []
        else:
            folders = [root / source for root in self._roots for source in SOURCES]
        for folder in folders:
            place = folder.joinpath(*parts)
            for candidate in (
                (place.with_name(f"{place.name}.py"), place / "__init__.py") if parts else (place / "__init__.py",)
            ):
                if self._is_inside(candidate) and self._file(candidate) is not None:
                    return candidate
        return None

    def _is_inside(self, path: Path) -> bool:
        return any(path.is_relative_to(root) for root in self._roots)

    def _file(self, path: Path) -> _Read | None:
        stamp = self._files.stamp(path)
        known = self._read.get(path)
        if known is not None and known.stamp == stamp:
            return known
        text = self._files.text(path) if stamp is not None else None
        if text is None:
            self._read.pop(path, None)
            return None
        known = self._read[path] = _Read(stamp, outline_of(text), imports_of(text))
        return known


def _attributes(bound: str, near: str) -> list[str]:
    """What is used of a module near the cursor, in the order in which it is."""
    return list(dict.fromkeys(re.findall(rf"\b{re.escape(bound)}\.(\w+)", near)))
