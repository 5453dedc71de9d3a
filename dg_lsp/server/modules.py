"""Files that an import refers to, by the rules of each language; what is installed elsewhere is not looked for."""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from dg_lsp.context.languages import language_id_of, language_of

SOURCES = ("", "src", "lib")
"""Folders of a root that may contain top-level modules."""
FURTHER_SOURCES = {"php": ("app",), "lua": ("lua",), "c": ("include",), "cpp": ("include",)}
JVM_SOURCES = ("src/main/java", "src/main/kotlin")
MAX_LISTED = 400
"""Files of a folder that are considered."""
MAX_OUTWARD = 12
"""Folders around a file in which packages are searched."""
_GO_MODULE = re.compile(r'^module\s+"?([^\s"]+)', re.MULTILINE)
_SCRIPTS = ("ts", "tsx", "d.ts", "js", "jsx", "mjs", "cjs", "mts", "cts")
_CRATE_FILES = ("mod.rs", "lib.rs", "main.rs")


@dataclass(frozen=True, slots=True)
class Modules:
    """Finds files below the folders of a workspace."""

    roots: Sequence[Path]
    is_inside: Callable[[Path], bool]  # whether a path is in the workspace, also where its links lead
    read: Callable[[Path], str | None]  # a file's text; None if it is excluded

    def files(self, module: str, path: Path, language_id: str, names: Sequence[str] = ()) -> Iterator[Path]:
        """Possible files of a module that the file at `path` imports, best first; they may be missing.

        In languages whose modules are folders these are the files of one, those with a name of `names` first.
        """
        match language_of(language_id).id:
            case "python":
                yield from self._python(module, path)
            case "javascript" | "typescript" | "typescriptreact":
                yield from _script(module, path)
            case "go":
                if (folder := self._go(module, path)) is not None:
                    yield from self.siblings(folder, "go", names)
            case "rust":
                yield from _rust(module, path)
            case "java" | "kotlin":
                for folder in dict.fromkeys((*self._around(path), *self._folders(*JVM_SOURCES))):
                    yield from self.siblings(folder / module, language_id, names)
            case "php":
                yield from self._php(module, path)
            case _:
                yield from self._plain(module, path, language_of(language_id).id)

    def siblings(self, folder: Path, language_id: str, names: Sequence[str]) -> Iterator[Path]:
        """The files of a folder in this language, those with a name of `names` first; tests of Go are left out."""
        if not self.is_inside(folder):
            return
        try:
            with os.scandir(folder) as entries:
                listed = sorted(entry.name for entry in islice(entries, MAX_LISTED))
        except (OSError, ValueError):
            return
        family = ("java", "kotlin") if language_id in ("java", "kotlin") else (language_id,)
        files = [one for one in listed if language_id_of(one) in family and not one.endswith("_test.go")]
        yield from (folder / one for one in sorted(files, key=lambda one: one.partition(".")[0] not in names))

    def _folders(self, *further: str) -> list[Path]:
        return [root / source for root in self.roots for source in (*SOURCES, *further)]

    def _around(self, path: Path) -> list[Path]:
        """The folders around a file that are in the workspace: one of them contains the first part of its package."""
        return [one for one in islice(path.parents, MAX_OUTWARD) if self.is_inside(one)]

    def _python(self, module: str, path: Path) -> Iterator[Path]:
        name = module.lstrip(".")
        level, parts = len(module) - len(name), [part for part in name.split(".") if part]
        folders = [path.parents[level - 1]] if 0 < level <= len(path.parents) else [] if level else self._folders()
        for package in (folder.joinpath(*parts) for folder in folders):
            if parts:
                yield package.with_name(f"{package.name}.py")
            yield package / "__init__.py"

    def _go(self, module: str, path: Path) -> Path | None:
        """The folder of a package of the same module, whose name is in the nearest go.mod."""
        for folder in path.parents:
            text = self.read(folder / "go.mod") if self.is_inside(folder / "go.mod") else None
            if text is not None and (found := _GO_MODULE.search(text)):
                name, _, inner = module.partition(found[1])
                return folder / inner.strip("/") if not name and inner[:1] in ("", "/") else None
            if folder in self.roots:
                break
        return None

    def _php(self, module: str, path: Path) -> Iterator[Path]:
        """A file name after `__DIR__`, or a class: the first parts of its namespace may have no folder."""
        if module.endswith(".php"):
            yield path.parent / module.lstrip("/")
            return
        parts = module.split("/")
        for start in range(len(parts)):
            for folder in self._folders(*FURTHER_SOURCES["php"]):
                yield folder.joinpath(*parts[start:]).with_suffix(".php")

    def _plain(self, module: str, path: Path, language_id: str) -> Iterator[Path]:
        """A file relative to the importing one or to a folder of sources: C, Ruby, Lua."""
        for folder in (path.parent, *self._folders(*FURTHER_SOURCES.get(language_id, ()))):
            if language_id == "ruby":
                yield folder / (module if module.endswith(".rb") else f"{module}.rb")
            elif language_id == "lua":
                inner = module.replace(".", "/")
                yield from (folder / f"{inner}.lua", folder / inner / "init.lua")
            else:
                yield folder / module


def _script(module: str, path: Path) -> Iterator[Path]:
    """A relative path of JavaScript: with or without its suffix, or a folder with an index."""
    if not module.startswith("."):
        return
    target = Path(os.path.normpath(path.parent / module))
    yield from (target.with_name(f"{target.name}.{suffix}") for suffix in _SCRIPTS)
    if target.suffix in (".js", ".jsx", ".mjs", ".cjs"):  # TypeScript is imported by the name that it is compiled to
        yield from (target.with_suffix(target.suffix.replace("js", "ts")), target.with_suffix(".tsx"))
    yield target
    yield from (target / f"index.{suffix}" for suffix in _SCRIPTS)


def _rust(module: str, path: Path) -> Iterator[Path]:
    """A module of the same crate, from `crate`, `self`, `super`, or a module of this one."""
    own = path.parent if path.name in _CRATE_FILES else path.with_suffix("")
    first, *rest = module.split("/")
    if first == "crate":
        own = next((one for one in path.parents if one.name == "src"), path.parent)
    elif first not in ("self", "super"):
        rest = [first, *rest]
    elif first == "super":
        own = own.parent
    while rest and rest[0] == "super":
        own, rest = own.parent, rest[1:]
    target = own.joinpath(*rest)
    if target.name:
        yield target.with_name(f"{target.name}.rs")
    yield from (target / name for name in _CRATE_FILES)
