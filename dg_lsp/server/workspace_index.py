"""The definitions that the imports of a buffer refer to, and the files of a workspace that have them.

Imports lead to files by the rules of each language; what is installed elsewhere is not searched.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from dg_lsp.context.document import Snapshot, path_of
from dg_lsp.context.exclusion import Exclusion, local_path
from dg_lsp.context.languages import language_id_of, language_of
from dg_lsp.context.tags import ALL, Import, definitions_of, imports_of
from dg_lsp.server.documents import DocumentStore

MAX_MODULES = 12
"""Files read for the imports of one buffer."""
MAX_NAMES = 12
"""Definitions shown of one file."""
MAX_BYTES = 100_000
"""Largest file that is indexed."""
MAX_NEW_BYTES = 40_000
"""Bytes of files that are parsed for one request, unless its first file is larger; the next request goes on."""
MAX_SEEN = 100
"""Files that are considered for one request."""
MAX_INDEXED = 2000
"""Files whose definitions are kept."""
SOURCES = ("", "src", "lib")
"""Folders of a root that may contain top-level modules."""
FURTHER_SOURCES = {"php": ("app",), "lua": ("lua",), "c": ("include",), "cpp": ("include",)}
JVM_SOURCES = ("src/main/java", "src/main/kotlin")
MAX_LISTED = 400
"""Files of a folder that are considered."""
MAX_ROOTS = 20
"""Folders of the workspace that are searched for modules, besides those that contain the importing file."""
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
        files = [name for name in listed if language_id_of(name) in family and not name.endswith("_test.go")]
        yield from (folder / name for name in sorted(files, key=lambda name: name.partition(".")[0] not in names))

    def _folders(self, *further: str) -> list[Path]:
        return [root / source for root in self.roots for source in (*SOURCES, *further)]

    def _around(self, path: Path) -> list[Path]:
        """The folders around a file that are in the workspace: one of them contains the first part of its package."""
        return [folder for folder in islice(path.parents, MAX_OUTWARD) if self.is_inside(folder)]

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
            if text is not None and (line := _GO_MODULE.search(text)):
                name, _, inner = module.partition(line[1])
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
        own = next((folder for folder in path.parents if folder.name == "src"), path.parent)
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


@dataclass(frozen=True, slots=True)
class Definitions:
    """The definitions that a buffer imports from one file."""

    path: Path
    lines: str
    num_mentioned: int  # number of its names that are used near the cursor


@dataclass(frozen=True, slots=True)
class _IndexedFile:
    """What a file defines and imports, and the state of the file that this is from."""

    path: Path
    language: str
    stamp: object
    definitions: dict[str, str]
    imports: tuple[Import, ...]


class WorkspaceIndex:
    """Definitions of the workspace's files, read when they are needed and again when they change.

    Files outside of the workspace's folders, excluded and large files are skipped. An open document counts instead of
    its file.
    """

    def __init__(self, documents: DocumentStore, exclusion: Exclusion) -> None:
        self._documents = documents
        self._exclusion = exclusion
        self._indexed: dict[Path, _IndexedFile] = {}
        self._seen: dict[Path, _IndexedFile | None] = {}
        """Files of the current request."""
        self._num_new_bytes = 0
        self.is_complete = True
        """Whether the last request saw all files that it needed."""

    def definitions(self, snapshot: Snapshot, imports: Sequence[Import], near: str) -> tuple[Definitions, ...]:
        """Definitions of what a document imports; files with more names in `near` come first."""
        path = local_path(snapshot.file_uri) or Path("/" + path_of(snapshot.file_uri))
        language_id = language_of(snapshot.language).id
        self._seen, self._num_new_bytes, self.is_complete = {}, 0, True
        words = frozenset(re.findall(r"\w+", near))
        wanted: dict[Path, dict[str, None]] = {}
        for file, names in self._wanted(imports, path, language_id, near, words):
            if file.path != path and names and (file.path in wanted or len(wanted) < MAX_MODULES):
                wanted.setdefault(file.path, {}).update(dict.fromkeys(names))
        definitions = [self._definitions_of(target, list(names), words) for target, names in wanted.items()]
        shown = [definition for definition in definitions if definition.lines]
        return tuple(sorted(shown, key=lambda definition: -definition.num_mentioned))

    def _definitions_of(self, path: Path, names: list[str], words: frozenset[str]) -> Definitions:
        file = self._file(path)
        known = [name for name in names if file is not None and name in file.definitions]
        kept = sorted(known, key=lambda name: name not in words)[:MAX_NAMES]
        lines = "\n".join(file.definitions[name] for name in kept) if file is not None else ""
        return Definitions(path, lines, len(words.intersection(known)))

    def _wanted(
        self, imports: Sequence[Import], path: Path, language_id: str, near: str, words: frozenset[str]
    ) -> Iterator[tuple[_IndexedFile, list[str]]]:
        """Files that a document depends on, and the names that it uses of each."""
        for imported in imports:
            yield from self._targets(imported, path, language_id, near, words)
        if language_of(language_id).has_packages:
            siblings = self._modules(path).siblings(path.parent, language_id, sorted(words))
            yield from _mentioned(self._files(siblings), words)

    def _targets(
        self, imported: Import, path: Path, language_id: str, near: str, words: frozenset[str]
    ) -> Iterator[tuple[_IndexedFile, list[str]]]:
        """Files that an import refers to, and the imported names of each."""
        module, name = imported.module, imported.name
        if name == ALL and language_of(language_id).has_packages:
            yield from _mentioned(self._find(module, path, language_id, sorted(words)), words)
        elif name == ALL:
            for file in islice(self._find(module, path, language_id), 1):
                yield file, list(file.definitions)
        elif name == "":
            definers = (self._definer(used, module, path, language_id) for used in _attributes(imported.bound, near))
            yield from filter(None, definers)
        elif (definer := self._definer(name, module, path, language_id)) is not None:
            yield definer
        elif module:
            separator = "" if module.endswith(".") else "." if language_id == "python" else "/"
            for file in islice(self._find(f"{module}{separator}{name}", path, language_id), 1):
                used = (name, *_attributes(imported.bound, near))
                yield file, [name for name in used if name in file.definitions]

    def _definer(self, name: str, module: str, path: Path, language_id: str) -> tuple[_IndexedFile, list[str]] | None:
        """The file that defines a name of a module, and its name there: one of the module, or one that it imports."""
        files = []
        for file in self._find(module, path, language_id, (name,)):
            if name in file.definitions:
                return file, [name]
            files.append(file)
        for file in files:
            for imported in file.imports:
                if not imported.name or imported.bound not in (name, ALL):
                    continue
                original = name if imported.name == ALL else imported.name
                for source in self._find(imported.module, file.path, file.language, (original,)):
                    if original in source.definitions:
                        return source, [original]
        return None

    def _find(self, module: str, path: Path, language_id: str, names: Sequence[str] = ()) -> Iterator[_IndexedFile]:
        """The files of a module that the file at `path` imports, inside of the workspace."""
        try:
            yield from self._files(self._modules(path).files(module, path, language_id, names))
        except ValueError:  # no path can have this name
            return

    def _files(self, paths: Iterable[Path]) -> Iterator[_IndexedFile]:
        existing = filter(self._is_inside, map(Path, map(os.path.normpath, paths)))
        yield from filter(None, map(self._file, islice(existing, MAX_MODULES)))

    def _modules(self, path: Path) -> Modules:
        """What finds the modules that the file at `path` imports."""
        roots = dict.fromkeys([*self._exclusion.folders_around(path), *self._exclusion.roots[:MAX_ROOTS]])
        return Modules(tuple(roots), self._is_inside, self._read_small)

    def _is_inside(self, path: Path) -> bool:
        """Whether a file exists in the workspace, where its links lead; the home of the user may be a link too."""
        try:
            target = path.resolve() if os.path.lexists(path) else None
        except (OSError, RuntimeError, ValueError):  # links in a circle, a NUL in the name
            return False
        return target is not None and bool(self._exclusion.folders_around(target / "file"))

    def _file(self, path: Path) -> _IndexedFile | None:
        """The file as it is now; None if it cannot be read, is excluded, or is left to the next request."""
        if path not in self._seen:
            self._seen[path] = self._indexed_file(path) if len(self._seen) < MAX_SEEN else None
        return self._seen[path]

    def _indexed_file(self, path: Path) -> _IndexedFile | None:
        stamp = self._stamp(path)
        known = self._indexed.pop(path, None)
        if known is None or known.stamp != stamp:
            known = self._parsed(path, stamp) if stamp is not None else None
        if known is not None:
            self._indexed[path] = known  # the latest is the last
            if len(self._indexed) > MAX_INDEXED:
                del self._indexed[next(iter(self._indexed))]
        return known

    def _parsed(self, path: Path, stamp: object) -> _IndexedFile | None:
        text = self._read(path)
        if text is None:
            return None
        if self._num_new_bytes and self._num_new_bytes + len(text) > MAX_NEW_BYTES:
            self.is_complete = False
            return None
        self._num_new_bytes += len(text)
        document = self._documents.at_path(path)
        language_id = document.language if document is not None else language_id_of(path.name)
        return _IndexedFile(path, language_id, stamp, definitions_of(text, language_id), imports_of(text, language_id))

    def _stamp(self, path: Path) -> object | None:
        """A value that changes with the file. Computed for each request: settings and .gitignore files may change."""
        if (document := self._documents.at_path(path)) is not None:
            is_shown = len(document.lines.text) <= MAX_BYTES and not self._exclusion.is_excluded(document.snapshot())
            return hash(document.lines.text) if is_shown else None  # a version may come again, after the next opening
        try:
            status = path.stat()
        except (OSError, ValueError):
            return None
        is_shown = status.st_size <= MAX_BYTES and path.is_file() and not self._exclusion.is_excluded(_snapshot(path))
        return (status.st_mtime_ns, status.st_size, status.st_ino) if is_shown else None

    def _read(self, path: Path) -> str | None:
        """The text of the buffer or the file."""
        if (document := self._documents.at_path(path)) is not None:
            return document.lines.text
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, ValueError):
            return None
        return None if self._exclusion.is_excluded(_snapshot(path, text)) else text

    def _read_small(self, path: Path) -> str | None:
        return self._read(path) if self._stamp(path) is not None else None


def _snapshot(path: Path, text: str = "") -> Snapshot:
    return Snapshot(path.as_uri(), 0, text, language_id_of(path.name))


def _mentioned(files: Iterable[_IndexedFile], words: frozenset[str]) -> Iterator[tuple[_IndexedFile, list[str]]]:
    """Files with those of their definitions that are used."""
    for file in files:
        yield file, [name for name in file.definitions if name in words]


def _attributes(bound: str, near: str) -> list[str]:
    """Attributes of a module that are used near the cursor, in order of use."""
    return list(dict.fromkeys(re.findall(rf"\b{re.escape(bound)}(?:\.|::|:)(\w+)", near)))
