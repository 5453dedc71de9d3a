"""The definitions that the imports of a buffer refer to, and the files of a workspace that have them.

Imports lead to files by the table of languages; what is installed elsewhere is not searched.
"""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from dg_lsp.context.document import Snapshot, path_of
from dg_lsp.context.exclusion import Exclusion, local_path
from dg_lsp.context.languages import Language, language_id_of, language_of
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
SOURCES = ("", "src", "lib", "include", "app", "lua", "src/main/java", "src/main/kotlin")
"""Folders of a root that may contain modules."""
MAX_LISTED = 400
"""Files of a folder that are considered."""
MAX_ROOTS = 20
"""Folders of the workspace that are searched for modules, besides those around the importing file."""
MAX_OUTWARD = 12
"""Folders around a file in which modules are searched."""


@dataclass(frozen=True, slots=True)
class Definitions:
    """The definitions that a buffer imports from one file."""

    path: Path
    lines: str


@dataclass(frozen=True, slots=True)
class _Importer:
    """A file that imports, and the code near the cursor."""

    path: Path
    language: Language
    near: str
    words: frozenset[str]

    def attributes_of(self, bound: str) -> list[str]:
        """Attributes of a module that are used near the cursor, in order of use."""
        return list(dict.fromkeys(re.findall(rf"\b{re.escape(bound)}(?:\.|::|:)(\w+)", self.near)))


@dataclass(frozen=True, slots=True)
class _IndexedFile:
    """What a file defines and imports, and the state of the file that this is from."""

    path: Path
    language: Language
    stamp: object
    definitions: dict[str, str]
    imports: tuple[Import, ...]


_Uses = tuple[_IndexedFile, list[str]]
"""A file, and names that it defines."""


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
        self._seen = {}
        self._num_new_bytes = 0
        self.is_complete = True
        path = local_path(snapshot.file_uri) or Path("/" + path_of(snapshot.file_uri))
        words = frozenset(re.findall(r"\w+", near))
        importer = _Importer(path, language_of(snapshot.language), near, words)
        names_of: dict[Path, dict[str, None]] = {}
        for file, names in self._uses(imports, importer):
            if file.path != path and names and (file.path in names_of or len(names_of) < MAX_MODULES):
                names_of.setdefault(file.path, {}).update(dict.fromkeys(names))
        by_use = sorted(names_of.items(), key=lambda item: -len(words.intersection(item[1])))
        return tuple(Definitions(target, self._lines(target, names, words)) for target, names in by_use)

    def _lines(self, path: Path, names: Iterable[str], words: frozenset[str]) -> str:
        """The definitions of these names in a file of the current request, those used near the cursor first."""
        file = self._file(path)
        kept = sorted(names, key=lambda name: name not in words)[:MAX_NAMES]
        return "\n".join(file.definitions[name] for name in kept) if file is not None else ""

    def _uses(self, imports: Sequence[Import], importer: _Importer) -> Iterator[_Uses]:
        """Files that a document depends on, and the names that it uses of each."""
        for imported in imports:
            yield from self._imported(imported, importer)
        if importer.language.package_suffixes:
            yield from _mentioned(self._files(self._package(importer.path.parent, importer)), importer)

    def _imported(self, imported: Import, importer: _Importer) -> Iterator[_Uses]:
        """Files that an import refers to, and the imported names of each."""
        module, name = imported.module, imported.name
        if name == ALL and importer.language.package_suffixes:
            yield from _mentioned(self._find(module, importer), importer)
        elif name == ALL:
            for file in islice(self._find(module, importer), 1):
                yield file, list(file.definitions)
        elif name == "":
            definers = (self._definer(used, module, importer) for used in importer.attributes_of(imported.bound))
            yield from filter(None, definers)
        elif (definer := self._definer(name, module, importer)) is not None:
            yield definer
        else:
            inner = f"{module}/{name}" if module else name
            for file in islice(self._find(inner, importer), 1):
                used = (name, *importer.attributes_of(imported.bound))
                yield file, [attribute for attribute in used if attribute in file.definitions]

    def _definer(self, name: str, module: str, importer: _Importer) -> _Uses | None:
        """The file that defines a name of a module, and its name there: one of the module, or one that it imports."""
        files = []
        for file in self._find(module, importer, name):
            if name in file.definitions:
                return file, [name]
            files.append(file)
        for file in files:
            for imported in file.imports:
                if not imported.name or imported.bound not in (name, ALL):
                    continue
                original = name if imported.name == ALL else imported.name
                inner = replace(importer, path=file.path, language=file.language)
                for source in self._find(imported.module, inner, original):
                    if original in source.definitions:
                        return source, [original]
        return None

    def _find(self, module: str, importer: _Importer, name: str = "") -> Iterator[_IndexedFile]:
        """The files of a module, inside of the workspace; of a package those with this name first."""
        try:
            yield from self._files(self._candidates(module, importer, name))
        except ValueError:  # no path can have this name
            return

    def _candidates(self, module: str, importer: _Importer, name: str) -> Iterator[Path]:
        """Possible files of a module, best first; they may be missing."""
        language = importer.language
        parts = module.split("/")
        is_relative = module.startswith(".")
        folders = [importer.path.parent] if is_relative else self._folders(importer.path)
        num_starts = len(parts) if language.has_package_prefix and not is_relative else 1
        for start in range(num_starts):
            inner = "/".join(parts[start:])
            for folder in folders:
                if language.package_suffixes:
                    yield from self._package(folder / inner, importer, name)
                yield from (Path(f"{folder}/{file.replace('{}', inner)}") for file in language.module_files)

    def _folders(self, path: Path) -> list[Path]:
        """The folders of the workspace in which the modules that a file imports may be, the nearest first."""
        around = [path.parent / path.stem, *path.parents[:MAX_OUTWARD]]
        roots = dict.fromkeys([*self._exclusion.folders_around(path), *self._exclusion.roots[:MAX_ROOTS]])
        return [*filter(self._is_inside, around), *(root / source for root in roots for source in SOURCES)]

    def _package(self, folder: Path, importer: _Importer, name: str = "") -> Iterator[Path]:
        """The files of a folder in this language, those with this name or one that is used near the cursor first."""
        if not self._is_inside(folder):
            return
        try:
            with os.scandir(folder) as entries:
                listed = sorted(entry.name for entry in islice(entries, MAX_LISTED))
        except (OSError, ValueError):
            return
        files = [file for file in listed if file.rpartition(".")[2] in importer.language.package_suffixes]
        names = {name} if name else importer.words
        yield from (folder / file for file in sorted(files, key=lambda file: file.partition(".")[0] not in names))

    def _is_inside(self, path: Path) -> bool:
        """Whether a file exists in the workspace, where its links lead; the home of the user may be a link too."""
        try:
            target = path.resolve() if os.path.lexists(path) else None
        except (OSError, RuntimeError, ValueError):  # links in a circle, a NUL in the name
            return False
        return target is not None and bool(self._exclusion.folders_around(target / "file"))

    def _files(self, paths: Iterable[Path]) -> Iterator[_IndexedFile]:
        existing = filter(self._is_inside, map(Path, map(os.path.normpath, paths)))
        yield from filter(None, map(self._file, islice(existing, MAX_MODULES)))

    def _file(self, path: Path) -> _IndexedFile | None:
        """The file as it is now; None if it cannot be read, is excluded, or is left to the next request."""
        if path not in self._seen:
            self._seen[path] = self._indexed_file(path) if len(self._seen) < MAX_SEEN else None
        return self._seen[path]

    def _indexed_file(self, path: Path) -> _IndexedFile | None:
        stamp = self._stamp(path)
        file = self._indexed.pop(path, None)
        if file is None or file.stamp != stamp:
            file = self._parsed(path, stamp) if stamp is not None else None
        if file is not None:
            self._indexed[path] = file  # the latest is the last
            if len(self._indexed) > MAX_INDEXED:
                del self._indexed[next(iter(self._indexed))]
        return file

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

    def _parsed(self, path: Path, stamp: object) -> _IndexedFile | None:
        if (document := self._documents.at_path(path)) is not None:
            text, language_id = document.lines.text, document.language
        else:
            try:
                text = path.read_text(encoding="utf-8")
            except (OSError, ValueError):
                return None
            language_id = language_id_of(path.name)
            if self._exclusion.is_excluded(_snapshot(path, text)):
                return None
        if self._num_new_bytes and self._num_new_bytes + len(text) > MAX_NEW_BYTES:
            self.is_complete = False
            return None
        self._num_new_bytes += len(text)
        definitions, imports = definitions_of(text, language_id), imports_of(text, language_id)
        return _IndexedFile(path, language_of(language_id), stamp, definitions, imports)


def _snapshot(path: Path, text: str = "") -> Snapshot:
    return Snapshot(path.as_uri(), 0, text, language_id_of(path.name))


def _mentioned(files: Iterable[_IndexedFile], importer: _Importer) -> Iterator[_Uses]:
    """Files with those of their definitions that are used near the cursor."""
    for file in files:
        yield file, [name for name in file.definitions if name in importer.words]
