"""The workspace on disk: which files are excluded, and the definitions that the imports of a buffer refer to."""

import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from pathspec import GitIgnoreSpec

from dg_lsp.context.document import Snapshot, path_of
from dg_lsp.context.exclusion import Exclusion, ExclusionReason, compiled, folded, local_path
from dg_lsp.context.languages import language_id_of, language_of
from dg_lsp.context.syntax_tree import Inside, inside
from dg_lsp.context.tags import ALL, Import, definitions_of, imports_of
from dg_lsp.server.documents import DocumentStore
from dg_lsp.server.modules import Modules
from dg_lsp.settings import PrivacySettings

GITIGNORE = ".gitignore"
MAX_FOLDERS = 256
"""Most folders around a file whose rules are read: the time grows with their square. Deeper files count as ignored."""


def repositories_around(path: Path) -> list[str]:
    """URIs of the git repositories that a file or folder is in, the innermost first."""
    return [one.as_uri() for one in (path, *path.parents) if (one / ".git").exists()]


class WorkspaceExclusion:
    """Exclusion rules of one session: the settings, and the .gitignore files of the workspace's folders.

    The session replaces settings and folders. A .gitignore file is read again when it changes.
    """

    flavour = Path

    def __init__(self, settings: PrivacySettings, folders: Iterable[str] = ()) -> None:
        self.settings = settings
        self.set_folders(folders)

    def set_folders(self, folders: Iterable[str]) -> None:
        """Replaces the workspace's folders, given as URIs; those of other schemes than `file` are skipped."""
        found = (local_path(uri, self.flavour) for uri in folders)
        self.roots = tuple(root for root in found if root is not None)
        self._specs: dict[Path, tuple[int, GitIgnoreSpec]] = {}
        """Patterns of each .gitignore file, and its modification time in nanoseconds."""

    def exclusion_reason(self, snapshot: Snapshot) -> ExclusionReason | None:
        """Why the model must not see this document, or None."""
        reason = Exclusion(self.settings).reason(snapshot)
        if reason is None and self.settings.exclude_gitignored and self.is_ignored(snapshot.file_uri):
            return ExclusionReason.IGNORED
        return reason

    def is_excluded(self, snapshot: Snapshot) -> bool:
        """Whether the model must not see this document."""
        return self.exclusion_reason(snapshot) is not None

    def is_outside_code(self, snapshot: Snapshot, offset: int) -> bool:
        """Whether the settings exclude automatic completions in the comment or string around the cursor."""
        settings = self.settings
        if not (settings.exclude_comments or settings.exclude_strings):
            return False
        found = inside(snapshot.alone().text, offset - snapshot.num_before, snapshot.language)
        excluded = (settings.exclude_comments, Inside.COMMENT), (settings.exclude_strings, Inside.STRING)
        return any(is_set and found is kind for is_set, kind in excluded)

    def is_ignored(self, uri: str) -> bool:
        """Whether git ignores the file, or folder if a slash ends the URI, or the one that its links lead to."""
        path, is_folder = local_path(uri, self.flavour), uri.endswith("/")
        if path is None:
            return False
        if len(path.parts) > MAX_FOLDERS or self._is_ignored(path, self.roots, is_folder=is_folder):
            return True
        try:
            target, roots = Path(path).resolve(), tuple(Path(root).resolve() for root in self.roots)
        except (OSError, RuntimeError, ValueError):  # links in a circle, a NUL in the name
            return False
        return (target, roots) != (path, self.roots) and self._is_ignored(target, roots, is_folder=is_folder)

    def _is_ignored(self, path: Path, roots: Sequence[Path], *, is_folder: bool) -> bool:
        """The nearest .gitignore file with a matching pattern decides."""
        if (root := _root_of(path, roots)) is None:
            return False
        parts = [path, *path.parents]
        inside = parts[: parts.index(root)]
        folders = [*inside[1:], root]
        specs = [(one, spec) for one in folders if (spec := self._spec(one / GITIGNORE)) is not None]
        # from the outside in: nothing inside an ignored folder can be included again
        return any(_matches(part, specs, is_folder=is_folder or part != path) for part in reversed(inside))

    def _spec(self, name: Path) -> GitIgnoreSpec | None:
        path = Path(name)
        try:
            status = path.lstat()
            if not stat.S_ISREG(status.st_mode):  # git reads no links either, and a pipe would never end
                return None
            modified = status.st_mtime_ns
            known = self._specs.get(path)
            if known is None or known[0] != modified:
                lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
                known = self._specs[path] = modified, compiled(tuple(lines))
        except (OSError, ValueError):  # missing, unreadable, or a NUL in the name
            return None
        return known[1]


def _matches(path: Path, specs: Sequence[tuple[Path, GitIgnoreSpec]], *, is_folder: bool) -> bool:
    """What the nearest folder above the path whose patterns match decides; the nearest one is the first."""
    above = [(folder, spec) for folder, spec in specs if len(folder.parts) < len(path.parts)]
    for folder, spec in above:
        inside = folded(path.relative_to(folder).as_posix())
        verdict = spec.check_file(inside + "/" * is_folder).include
        if verdict is not None:
            return verdict
    return False


def _root_of(path: Path, roots: Sequence[Path]) -> Path | None:
    """The folder above the path, as the path spells it, that is one of the roots."""
    names = {folded(root.as_posix()) for root in roots}
    return next((folder for folder in reversed(path.parents) if folded(folder.as_posix()) in names), None)


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

    def __init__(self, documents: DocumentStore, exclusion: WorkspaceExclusion) -> None:
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
        found = [self._definitions_of(target, list(names), words) for target, names in wanted.items()]
        return tuple(sorted((one for one in found if one.lines), key=lambda one: -one.num_mentioned))

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
        for one in imports:
            yield from self._targets(one, path, language_id, near, words)
        if language_of(language_id).has_packages:
            for file in self._files(self._modules.siblings(path.parent, language_id, sorted(words))):
                yield file, [name for name in file.definitions if name in words]

    def _targets(
        self, one: Import, path: Path, language_id: str, near: str, words: frozenset[str]
    ) -> Iterator[tuple[_IndexedFile, list[str]]]:
        """Files that an import refers to, and the imported names of each."""
        if one.name == "":
            for name in _attributes(one.bound, near):
                if (found := self._definer(name, one.module, path, language_id)) is not None:
                    yield found
        elif one.name == ALL:
            yield from self._all(one.module, path, language_id, words)
        elif (found := self._definer(one.name, one.module, path, language_id)) is not None:
            yield found
        elif one.module:
            separator = "" if one.module.endswith(".") else "." if language_id == "python" else "/"
            for file in islice(self._find(f"{one.module}{separator}{one.name}", path, language_id), 1):
                yield file, [name for name in (one.name, *_attributes(one.bound, near)) if name in file.definitions]

    def _all(
        self, module: str, path: Path, language_id: str, words: frozenset[str]
    ) -> Iterator[tuple[_IndexedFile, list[str]]]:
        """The names of a module; of a folder of files those that are used."""
        if language_of(language_id).has_packages:
            for file in self._find(module, path, language_id, sorted(words)):
                yield file, [name for name in file.definitions if name in words]
        else:
            for file in islice(self._find(module, path, language_id), 1):
                yield file, list(file.definitions)

    def _definer(self, name: str, module: str, path: Path, language_id: str) -> tuple[_IndexedFile, list[str]] | None:
        """The file that defines a name of a module, and its name there: one of the module, or one that it imports."""
        files = []
        for file in self._find(module, path, language_id, (name,)):
            if name in file.definitions:
                return file, [name]
            files.append(file)
        for module_file in files:
            for one in (one for one in module_file.imports if one.name and one.bound in (name, ALL)):
                wanted = name if one.name == ALL else one.name
                for source in self._find(one.module, module_file.path, module_file.language, (wanted,)):
                    if wanted in source.definitions:
                        return source, [wanted]
        return None

    def _find(self, module: str, path: Path, language_id: str, names: Sequence[str] = ()) -> Iterator[_IndexedFile]:
        """The files of a module that the file at `path` imports, inside of the workspace."""
        try:
            yield from self._files(self._modules.files(module, path, language_id, names))
        except ValueError:  # no path can have this name
            return

    def _files(self, paths: Iterable[Path]) -> Iterator[_IndexedFile]:
        existing = filter(self._is_inside, map(Path, map(os.path.normpath, paths)))
        yield from filter(None, map(self._file, islice(existing, MAX_MODULES)))

    @property
    def _modules(self) -> Modules:
        return Modules(self._exclusion.roots, self._is_inside, self._read_small)

    def _is_inside(self, path: Path) -> bool:
        """Whether a file exists in the workspace, where its links lead; the home of the user may be a link too."""
        try:
            target = path.resolve() if os.path.lexists(path) else None
            roots = self._exclusion.roots
            return target is not None and any(target.is_relative_to(root.resolve()) for root in roots)
        except (OSError, RuntimeError, ValueError):  # links in a circle, a NUL in the name
            return False

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


def _attributes(bound: str, near: str) -> list[str]:
    """Attributes of a module that are used near the cursor, in order of use."""
    return list(dict.fromkeys(re.findall(rf"\b{re.escape(bound)}(?:\.|::|:)(\w+)", near)))
