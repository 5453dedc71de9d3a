"""The definitions that a buffer imports, found by the names of the workspace's files and folders.

A file is read if an import statement of the buffer names it or its folder, in whatever language; what is installed
elsewhere is not searched.
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from dg_lsp.context.document import Snapshot, path_of
from dg_lsp.context.exclusion import Exclusion, local_path
from dg_lsp.context.languages import Language, language_id_of, language_of
from dg_lsp.context.snippets import Words
from dg_lsp.context.tags import definitions_of
from dg_lsp.server.documents import DocumentStore

MAX_MODULES = 12
"""Files that are shown of one buffer."""
MAX_NAMES = 12
"""Definitions shown of one file."""
MAX_BYTES = 100_000
"""Largest file that is indexed."""
MAX_NEW_BYTES = 40_000
"""Bytes of files that are parsed for one request, unless its first file is larger; the next request goes on."""
MAX_READ = 50
"""Files that are considered for one request."""
MAX_INDEXED = 2000
"""Files whose definitions are kept."""
MAX_FOLDERS, MAX_ENTRIES = 300, 1000
"""Folders that are searched for files that the imports of a buffer name, the nearest first, and entries of each."""
FOLDER_FILES = ("__init__", "index", "init", "mod")
"""Names of files that an import of their folder means."""
KEYWORDS = frozenset(
    ("import", "from", "as", "type", "export", "const", "use", "pub", "crate", "self", "super", "require")
)
"""Words of import statements that are no names."""
SKIPPED = re.compile(r"\.|(?:node_modules|site-packages|__pycache__|venv|target|dist)\Z")
"""Names of folders that are not searched, because they contain what programs wrote, or what is installed."""


@dataclass(frozen=True, slots=True)
class Definitions:
    """The definitions that a buffer imports from one file."""

    path: Path
    lines: str


@dataclass(frozen=True, slots=True)
class _IndexedFile:
    """What a file defines, and the state of the file that this is from."""

    stamp: object
    definitions: dict[str, str]


_Candidate = tuple[Path, set[Words], bool]
"""A file, the imports that name it or its folder, and whether they name the file."""


class WorkspaceIndex:
    """Definitions of the workspace's files, read when they are needed and again when they change.

    Files outside of the workspace's folders, excluded and large files are skipped. An open document counts instead of
    its file.
    """

    def __init__(self, documents: DocumentStore, exclusion: Exclusion) -> None:
        self._documents = documents
        self._exclusion = exclusion
        self._indexed: dict[Path, _IndexedFile] = {}
        self._num_new_bytes = 0
        self.is_complete = True
        """Whether the last request saw all files that it needed."""

    def definitions(self, snapshot: Snapshot, imports: Sequence[Words], near: str) -> tuple[Definitions, ...]:
        """Definitions of the files that a document imports, those first that `near`, the code near the cursor, uses.

        Of a file these are the definitions that are named by an import that names the file or its folder; where an
        import names the file alone, those that are used near the cursor. Files with more used names come first.
        """
        self._num_new_bytes = 0
        self.is_complete = True
        path = local_path(snapshot.file_uri) or Path("/" + path_of(snapshot.file_uri))
        used = frozenset(re.findall(r"\w+", near))
        shown = dict[Path, list[str]]()
        seen = set[str]()
        files = sorted(self._candidates(path, language_of(snapshot.language), imports), key=_distance)
        known_words = KEYWORDS | {part for file, *_ in files for part in (file.stem, file.parent.name)}
        for file, statements, is_named in islice(files, MAX_READ):
            named = frozenset[str]().union(*statements)
            if not is_named and named <= seen | known_words:  # all that its imports name is found already
                continue
            indexed = self._indexed_file(file)
            known = indexed.definitions if indexed is not None else {}
            names = named.intersection(known) or (used.intersection(known) if is_named else frozenset())
            if new := names - seen:  # a name that several files define is that of the first one
                seen |= new
                in_order = (name for name in known if name in new)
                shown[file] = sorted(in_order, key=lambda name: name not in used)[:MAX_NAMES]
        by_use = sorted(shown, key=lambda file: -len(used.intersection(shown[file])))[:MAX_MODULES]
        return tuple(
            Definitions(file, "\n".join(self._indexed[file].definitions[name] for name in shown[file]))
            for file in by_use
        )

    def _candidates(self, path: Path, language: Language, imports: Sequence[Words]) -> Iterator[_Candidate]:
        """Files that imports name, those in the nearest folders first.

        In some languages an import names a folder, whose files see each other's definitions without an import.
        """
        every = frozenset[str]().union(*imports)
        for file in self._files(path):
            stem = file.name.partition(".")[0]
            stem = file.parent.name if stem in FOLDER_FILES else stem
            names = {stem, file.parent.name}
            is_sibling = file.suffix[1:] in language.package_suffixes
            is_beside = is_sibling and file.parent == path.parent
            if (
                (is_beside or not every.isdisjoint(names))
                and file != path
                and (is_sibling or _is_related(language, language_of(language_id_of(file.name))))
                and self._is_inside(file)
            ):
                statements = {words for words in imports if not words.isdisjoint(names)}
                yield file, statements, is_sibling or any(stem in words for words in statements)

    def _files(self, path: Path) -> Iterator[Path]:
        """Files of the workspace, those in the nearest folders around a path first; links to folders are left out."""
        seen = set[Path]()
        for top in dict.fromkeys((*filter(self._is_inside, path.parents), *self._exclusion.roots)):
            waiting = [top]
            while waiting and len(seen) < MAX_FOLDERS:
                folder = waiting.pop()
                if folder in seen:
                    continue
                seen.add(folder)
                with suppress(OSError, ValueError), os.scandir(folder) as entries:  # unreadable; a NUL in the name
                    listed = sorted(islice(entries, MAX_ENTRIES), key=lambda entry: entry.name)
                    inner = [entry for entry in listed if entry.is_dir(follow_symlinks=False)]
                    waiting += [folder / entry.name for entry in reversed(inner) if not SKIPPED.match(entry.name)]
                    yield from (folder / entry.name for entry in listed if entry not in inner)

    def _is_inside(self, path: Path) -> bool:
        """Whether a file exists in the workspace, where its links lead; the home of the user may be a link too."""
        try:
            target = path.resolve() if os.path.lexists(path) else None
        except (OSError, RuntimeError, ValueError):  # links in a circle, a NUL in the name
            return False
        return target is not None and bool(self._exclusion.folders_around(target / "file"))

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
        return _IndexedFile(stamp, definitions_of(text, language_id))


def _snapshot(path: Path, text: str = "") -> Snapshot:
    return Snapshot(path.as_uri(), 0, text, language_id_of(path.name))


def _distance(candidate: _Candidate) -> tuple[bool, bool]:
    """Sort key: files first that an import names, of these the ones whose folder it names too."""
    file, statements, is_named = candidate
    return not is_named, not any(file.parent.name in words for words in statements)


def _is_related(language: Language, other: Language) -> bool:
    """Whether files of one language import those of the other."""
    return language is other or other.id in language.like or language.id in other.like
