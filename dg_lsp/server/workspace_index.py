"""An index of the workspace: definitions that the imports of a Python buffer refer to."""

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tree_sitter import Node, Parser

from dg_lsp.context.document import Snapshot
from dg_lsp.context.exclusion import path_of
from dg_lsp.context.languages import grammar_of
from dg_lsp.server.documents import Document, DocumentStore
from dg_lsp.server.exclusion import WorkspaceExclusion

MAX_IMPORT_CHARS = 40_000
"""Characters at the beginning of a buffer that are searched for imports."""
_STATEMENT = re.compile(
    r"^[ \t]*((?:from[ \t]+[.\w]+[ \t]+import[ \t]+|import[ \t]+)(?:\([^)]*\)|(?:[^\n\\(]|\\\n)+))", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Import:
    """One imported name."""

    module: str
    level: int
    """Number of dots before the module."""
    name: str
    """The imported name; empty for the module itself, `*` for all of its names."""
    bound: str
    """The name in the importing file; dotted for `import a.b`."""


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
_DEFINITIONS = ("function_definition", "class_definition")


@dataclass(frozen=True, slots=True)
class Outline:
    """The top level of one file."""

    definitions: dict[str, str]
    """Signature or first line of each definition by name, in the order of the file."""


def outline_of(text: str) -> Outline:
    """The definitions of a file, which may be incomplete. The last definition of a name counts."""
    tree = Parser(grammar_of("tree_sitter_python")).parse(text.encode())
    found: dict[str, str] = {}
    for node in tree.root_node.children:
        inner = _definition_node(node)
        if inner is not None:
            found[_text(inner.child_by_field_name("name"))] = _definition(inner)
        elif (constant := _constant(node)) is not None:
            found[constant[0]] = constant[1]
    return Outline({name: shown for name, shown in found.items() if name and shown})


def _definition_node(node: Node) -> Node | None:
    """The function or class that a statement defines, with or without decorators."""
    inner = node.child_by_field_name("definition") if node.type == "decorated_definition" else node
    return inner if inner is not None and inner.type in _DEFINITIONS else None


def _definition(node: Node) -> str:
    if node.type == "function_definition":
        return _signature(node) + _docstring(node, "    ", "...")
    body = node.child_by_field_name("body")
    members = []
    for child in body.children if body is not None else ():
        inner = _definition_node(child)
        if inner is not None and inner.type == "function_definition" and not _is_private(inner):
            members.append(f"    {_signature(inner)} ...")
        elif _constant(child) is not None:
            members.append("    " + " ".join(_text(child).split())[:MAX_VALUE])
    shown = "".join(f"\n{line}" for line in members[:MAX_MEMBERS])
    return _signature(node) + _docstring(node, "    ", "" if shown else "...") + shown


def _signature(node: Node) -> str:
    """The definition up to its body, on one line."""
    body, source = node.child_by_field_name("body"), node.text or b""
    size = body.start_byte - node.start_byte if body is not None else len(source)
    head = source[:size].decode("utf-8", "replace")
    code = [line.partition("  #")[0] for line in head.split("\n")]
    return " ".join(" ".join(code).split()).replace("( ", "(").replace(", )", ")").replace(" )", ")")


def _docstring(node: Node, indentation: str, default: str) -> str:
    """The first line of the docstring on a line of its own, or the default."""
    body = node.child_by_field_name("body")
    first = body.children[0] if body is not None and body.children else None
    if first is not None and first.type == "expression_statement" and first.children[0].type == "string":
        summary = _text(first).strip("rRuUbB").strip("\"'").strip().split("\n")[0].strip()
        return f'\n{indentation}"""{summary}"""'
    return f" {default}" if default else ""


def _constant(node: Node) -> tuple[str, str] | None:
    """Name and text of an assignment to, or annotation of, one name."""
    if node.type != "expression_statement" or not node.children or node.children[0].type != "assignment":
        return None
    left = node.children[0].child_by_field_name("left")
    if left is None or left.type != "identifier":
        return None
    return _text(left), " ".join(_text(node).split())[:MAX_VALUE]


def _is_private(node: Node) -> bool:
    name = _text(node.child_by_field_name("name"))
    return name.startswith("_") and name != "__init__"


def _text(node: Node | None) -> str:
    return (node.text or b"").decode("utf-8", "replace") if node is not None else ""


MAX_MODULES = 12
"""Files read for the imports of one buffer."""
MAX_NAMES = 12
"""Definitions shown of one file."""
SOURCES = ("", "src", "lib")
"""Folders of a root that may contain top-level modules."""


class FileReader(Protocol):
    """Reads files of the workspace that are not excluded."""

    def stamp(self, path: Path) -> object | None:
        """A value that changes when the file changes; None for a missing or excluded file."""
        ...

    def text(self, path: Path) -> str | None:
        """The text of the file; None if it cannot be read or is excluded."""
        ...


@dataclass(frozen=True, slots=True)
class Definitions:
    """The definitions that a buffer imports from one file."""

    path: Path
    lines: str
    num_mentioned: int
    """Number of its names that are used near the cursor."""


@dataclass(frozen=True, slots=True)
class _IndexedFile:
    stamp: object
    outline: Outline
    imports: tuple[Import, ...]


class WorkspaceIndex:
    """Outlines of imported files, read on demand and again when they change."""

    def __init__(self, roots: Sequence[Path], files: FileReader) -> None:
        self._roots = tuple(roots)
        self._files = files
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
        read = self._file(path)
        definitions = read.outline.definitions if read is not None else {}
        mentioned = [name for name in names if name in definitions and name in words]
        others = [name for name in names if name in definitions and name not in words]
        kept = [*mentioned, *others][:MAX_NAMES]
        return Definitions(path, "\n".join(definitions[name] for name in kept), len(mentioned))

    def _targets(self, one: Import, path: Path, near: str) -> Iterator[tuple[Path, list[str]]]:
        """Files that an import refers to, and the imported names of each."""
        if one.name in ("", "*"):
            found = self._find(one.module, one.level, path)
            read = self._file(found) if found is not None else None
            if found is not None and read is not None:
                every = list(read.outline.definitions)
                yield found, every if one.name else _attributes(one.bound, near)
            return
        module = self._find(one.module, one.level, path)
        if module is not None and (defined := self._defining_file(one.name, module)) is not None:
            yield defined, [one.name]
            return
        inner = f"{one.module}.{one.name}" if one.module else one.name
        if (submodule := self._find(inner, one.level, path)) is not None:
            yield submodule, _attributes(one.bound, near)

    def _defining_file(self, name: str, module: Path) -> Path | None:
        """The file that defines a name of a module: the module itself, or the module that it imports the name from."""
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
        """The file of a module that the file at `path` imports; None outside of the workspace."""
        parts = [part for part in module.split(".") if part]
        if level:
            folders = [path.parents[level - 1]] if level <= len(path.parents) else []
        else:
            folders = [root / source for root in self._roots for source in SOURCES]
        for folder in folders:
            module_path = folder.joinpath(*parts)
            package = module_path / "__init__.py"
            for candidate in (module_path.with_name(f"{module_path.name}.py"), package) if parts else (package,):
                if self._is_inside(candidate) and self._file(candidate) is not None:
                    return candidate
        return None

    def _is_inside(self, path: Path) -> bool:
        return any(path.is_relative_to(root) for root in self._roots)

    def _file(self, path: Path) -> _IndexedFile | None:
        stamp = self._files.stamp(path)
        known = self._indexed.get(path)
        if known is not None and known.stamp == stamp:
            return known
        text = self._files.text(path) if stamp is not None else None
        if text is None:
            self._indexed.pop(path, None)
            return None
        known = self._indexed[path] = _IndexedFile(stamp, outline_of(text), imports_of(text))
        return known


def _attributes(bound: str, near: str) -> list[str]:
    """Attributes of a module that are used near the cursor, in order of use."""
    return list(dict.fromkeys(re.findall(rf"\b{re.escape(bound)}\.(\w+)", near)))


MAX_BYTES = 500_000
"""Largest file that is indexed."""


class VisibleFiles:
    """Reads open documents and files on disk; see `FileReader`."""

    def __init__(self, documents: DocumentStore, exclusion: WorkspaceExclusion) -> None:
        self._documents = documents
        self._exclusion = exclusion

    def stamp(self, path: Path) -> object | None:
        """See `FileReader.stamp`. Computed for each request, because settings and .gitignore files may change."""
        if (document := self._open_document(path)) is not None:
            return None if self._is_excluded(document.snapshot()) else (document.version, id(document))
        try:
            status = path.stat()
        except (OSError, ValueError):
            return None
        is_shown = status.st_size <= MAX_BYTES and path.is_file() and not self._is_excluded(_snapshot(path, ""))
        return (status.st_mtime_ns, status.st_size, status.st_ino) if is_shown else None

    def text(self, path: Path) -> str | None:
        """See `FileReader.text`. The target of a symbolic link must not be excluded either."""
        if (document := self._open_document(path)) is not None:
            return document.lines.text
        try:
            text = path.read_text(encoding="utf-8")
            target = path.resolve()
        except (OSError, ValueError):
            return None
        return None if self._is_excluded(_snapshot(target, text)) else text

    def _is_excluded(self, snapshot: Snapshot) -> bool:
        return self._exclusion.exclusion_reason(snapshot) is not None

    def _open_document(self, path: Path) -> Document | None:
        wanted = path.as_posix().lstrip("/")
        return next((one for one in self._documents.all() if path_of(one.uri) == wanted), None)


def _snapshot(path: Path, text: str) -> Snapshot:
    return Snapshot(path.as_uri(), 0, text, "python")
