"""The workspace on disk: which files are excluded, and the definitions that the imports of a Python buffer refer to."""

import ast
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pathspec import GitIgnoreSpec
from tree_sitter import Node, Parser

from dg_lsp.context.document import Snapshot
from dg_lsp.context.exclusion import Exclusion, ExclusionReason, compiled, folded, local_path
from dg_lsp.context.languages import grammar_of, language_of
from dg_lsp.context.syntax_tree import Inside, inside
from dg_lsp.server.documents import DocumentStore
from dg_lsp.settings import PrivacySettings

GITIGNORE = ".gitignore"


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
        if reason is None and self.settings.exclude_gitignored and self.is_ignored(snapshot.uri):
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
        found = inside(snapshot.text, offset, snapshot.language)
        excluded = (settings.exclude_comments, Inside.COMMENT), (settings.exclude_strings, Inside.STRING)
        return any(is_set and found is kind for is_set, kind in excluded)

    def is_ignored(self, uri: str) -> bool:
        """Whether git ignores the file, or folder if a slash ends the URI, or the one that its links lead to."""
        path, is_folder = local_path(uri, self.flavour), uri.endswith("/")
        if path is None or self._is_ignored(path, self.roots, is_folder=is_folder):
            return path is not None
        try:
            target, roots = Path(path).resolve(), tuple(Path(root).resolve() for root in self.roots)
        except (OSError, RuntimeError, ValueError):  # links in a circle, a NUL in the name
            return False
        return (target, roots) != (path, self.roots) and self._is_ignored(target, roots, is_folder=is_folder)

    def _is_ignored(self, path: Path, roots: Sequence[Path], *, is_folder: bool) -> bool:
        """The nearest .gitignore file with a matching pattern decides."""
        if (root := _root_of(path, roots)) is None:
            return False
        # from the outside in: nothing inside an ignored folder can be included again
        parts = [path, *path.parents]
        inside = parts[: parts.index(root)]
        return any(self._matches(part, root, is_folder=is_folder or part != path) for part in reversed(inside))

    def _matches(self, path: Path, root: Path, *, is_folder: bool) -> bool:
        for folder in path.parents:
            if (spec := self._spec(folder / GITIGNORE)) is not None:
                inside = folded(path.relative_to(folder).as_posix())
                verdict = spec.check_file(inside + "/" * is_folder).include
                if verdict is not None:
                    return verdict
            if folder == root:
                break
        return False

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
        except (OSError, ValueError):  # missing, unreadable, or invalid patterns
            return None
        return known[1]


def _root_of(path: Path, roots: Sequence[Path]) -> Path | None:
    """The folder above the path, as the path spells it, that is one of the roots."""
    names = {folded(root.as_posix()) for root in roots}
    return next((folder for folder in reversed(path.parents) if folded(folder.as_posix()) in names), None)


MAX_IMPORT_CHARS = 40_000
"""Characters at the beginning of a buffer that are searched for imports."""
_STATEMENT = re.compile(
    r"^[ \t]*((?:from[ \t]+[.\w]+[ \t]+import[ \t]+|import[ \t]+)(?:\([^)]*\)|(?:[^\n\\(]|\\\n)+))", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Import:
    """One imported name."""

    module: str
    level: int  # number of dots before the module
    name: str  # the imported name; empty for the module itself, `*` for all of its names
    bound: str  # the name in the importing file; dotted for `import a.b`


def imports_of(text: str) -> tuple[Import, ...]:
    """The imports in the order of the buffer. Statements are parsed one by one, so the rest may be incomplete code."""
    found: list[Import] = []
    for match in _STATEMENT.finditer(text[:MAX_IMPORT_CHARS]):
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


MAX_VALUE = 100
"""Characters shown of a constant's line."""
MAX_MEMBERS = 24
"""Members shown of a class."""


def definitions_of(text: str) -> dict[str, str]:
    """Signature or first line of each definition at the top level of a file, by name, in the order of the file.

    The file may be incomplete. The last definition of a name counts.
    """
    grammar = grammar_of(language_of("python").grammar)
    if grammar is None:
        return {}
    tree = Parser(grammar).parse(text.encode())
    found = filter(None, map(_definition, tree.root_node.children))
    return {name: shown for name, shown in found if name and shown}


def _definition(node: Node, *, is_member: bool = False) -> tuple[str, str] | None:
    """Name and shown text of a function, a class or an assignment to one name; None for any other statement."""
    inner = node.child_by_field_name("definition") if node.type == "decorated_definition" else node
    if inner is None:
        return None
    name = _text(inner.child_by_field_name("name"))
    if inner.type == "function_definition":
        return name, _signature(inner) + (" ..." if is_member else _docstring(inner) or " ...")
    if inner.type == "class_definition" and not is_member:
        body = inner.child_by_field_name("body")
        members = [_definition(child, is_member=True) for child in body.children] if body is not None else []
        shown = [text for name, text in filter(None, members) if not name.startswith("_") or name == "__init__"]
        lines = "".join(f"\n    {line}" for line in shown[:MAX_MEMBERS])
        return name, _signature(inner) + (_docstring(inner) + lines or " ...")
    if inner.type == "expression_statement" and inner.children and inner.children[0].type == "assignment":
        left = inner.children[0].child_by_field_name("left")
        if left is not None and left.type == "identifier":
            return _text(left), " ".join(_text(inner).split())[:MAX_VALUE]
    return None


def _signature(node: Node) -> str:
    """The definition up to its body, on one line."""
    body, source = node.child_by_field_name("body"), node.text or b""
    size = body.start_byte - node.start_byte if body is not None else len(source)
    head = source[:size].decode("utf-8", "replace")
    code = [line.partition("  #")[0] for line in head.split("\n")]
    return " ".join(" ".join(code).split()).replace("( ", "(").replace(", )", ")").replace(" )", ")")


def _docstring(node: Node) -> str:
    """The first line of the docstring on a line of its own; empty without one."""
    body = node.child_by_field_name("body")
    first = body.children[0] if body is not None and body.children else None
    if first is None or first.type != "expression_statement" or first.children[0].type != "string":
        return ""
    summary = _text(first).strip("rRuUbB").strip("\"'").strip().split("\n")[0].strip()
    return f'\n    """{summary}"""'


def _text(node: Node | None) -> str:
    return (node.text or b"").decode("utf-8", "replace") if node is not None else ""


MAX_MODULES = 12
"""Files read for the imports of one buffer."""
MAX_NAMES = 12
"""Definitions shown of one file."""
MAX_BYTES = 500_000
"""Largest file that is indexed."""
SOURCES = ("", "src", "lib")
"""Folders of a root that may contain top-level modules."""


@dataclass(frozen=True, slots=True)
class Definitions:
    """The definitions that a buffer imports from one file."""

    path: Path
    lines: str
    num_mentioned: int  # number of its names that are used near the cursor


@dataclass(frozen=True, slots=True)
class _IndexedFile:
    path: Path
    stamp: object
    definitions: dict[str, str]
    imports: tuple[Import, ...]


class WorkspaceIndex:
    """Definitions in imported files, read on demand and again when they change. Never those of an excluded file."""

    def __init__(self, documents: DocumentStore, exclusion: WorkspaceExclusion) -> None:
        self._documents = documents
        self._exclusion = exclusion
        self._indexed: dict[Path, _IndexedFile] = {}

    def definitions(self, path: Path, imports: Sequence[Import], near: str) -> tuple[Definitions, ...]:
        """Definitions of what the file at `path` imports; files with more names in `near` come first."""
        words = frozenset(re.findall(r"\w+", near))
        wanted: dict[Path, dict[str, None]] = {}
        for one in imports:
            for target, names in self._targets(one, path, near):
                if target != path and (target in wanted or len(wanted) < MAX_MODULES):
                    wanted.setdefault(target, {}).update(dict.fromkeys(names))
        found = [self._definitions_of(target, list(names), words) for target, names in wanted.items()]
        return tuple(sorted((one for one in found if one.lines), key=lambda one: -one.num_mentioned))

    def _definitions_of(self, path: Path, names: list[str], words: frozenset[str]) -> Definitions:
        file = self._file(path)
        known = [name for name in names if file is not None and name in file.definitions]
        kept = sorted(known, key=lambda name: name not in words)[:MAX_NAMES]
        lines = "\n".join(file.definitions[name] for name in kept) if file is not None else ""
        return Definitions(path, lines, len(words.intersection(known)))

    def _targets(self, one: Import, path: Path, near: str) -> Iterator[tuple[Path, list[str]]]:
        """Files that an import refers to, and the imported names of each."""
        module = self._find(one.module, one.level, path)
        if one.name in ("", "*"):
            if module is not None:
                yield module.path, list(module.definitions) if one.name else _attributes(one.bound, near)
        elif module is not None and (definer := self._definer(one.name, module)) is not None:
            yield definer.path, [one.name]
        elif (submodule := self._find(f"{one.module}.{one.name}", one.level, path)) is not None:
            yield submodule.path, _attributes(one.bound, near)

    def _definer(self, name: str, module: _IndexedFile) -> _IndexedFile | None:
        """The file that defines a name of a module: the module itself, or the module that it imports the name from."""
        if name in module.definitions:
            return module
        imports = [one for one in module.imports if one.bound == one.name == name]
        sources = (self._find(one.module, one.level, module.path) for one in imports)
        return next((source for source in sources if source is not None and name in source.definitions), None)

    def _find(self, module: str, level: int, path: Path) -> _IndexedFile | None:
        """The file of a module that the file at `path` imports; None outside of the workspace."""
        parts = [part for part in module.split(".") if part]
        if level:
            folders = [path.parents[level - 1]] if level <= len(path.parents) else []
        else:
            folders = [root / source for root in self._exclusion.roots for source in SOURCES]
        for folder in folders:
            package = folder.joinpath(*parts)
            candidates = [*([package.with_name(f"{package.name}.py")] if parts else []), package / "__init__.py"]
            for candidate in candidates:
                if self._is_inside(candidate) and (file := self._file(candidate)) is not None:
                    return file
        return None

    def _is_inside(self, path: Path) -> bool:
        """Whether a file is in the workspace where its links lead; the home of the user may be a link too."""
        try:
            target = path.resolve()
            return any(target.is_relative_to(root.resolve()) for root in self._exclusion.roots)
        except (OSError, RuntimeError, ValueError):  # links in a circle, a NUL in the name
            return False

    def _file(self, path: Path) -> _IndexedFile | None:
        """The file as it is now; None if it cannot be read or is excluded."""
        stamp = self._stamp(path)
        known = self._indexed.get(path)
        if known is not None and known.stamp == stamp:
            return known
        text = self._read(path) if stamp is not None else None
        if text is None:
            self._indexed.pop(path, None)
            return None
        known = self._indexed[path] = _IndexedFile(path, stamp, definitions_of(text), imports_of(text))
        return known

    def _stamp(self, path: Path) -> object | None:
        """A value that changes with the file. Computed for each request: settings and .gitignore files may change."""
        if (document := self._documents.at_path(path)) is not None:
            return None if self._exclusion.is_excluded(document.snapshot()) else (document.version, id(document))
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


def _snapshot(path: Path, text: str = "") -> Snapshot:
    return Snapshot(path.as_uri(), 0, text, "python")


def _attributes(bound: str, near: str) -> list[str]:
    """Attributes of a module that are used near the cursor, in order of use."""
    return list(dict.fromkeys(re.findall(rf"\b{re.escape(bound)}\.(\w+)", near)))
