"""What a Python buffer imports, statement by statement: the rest of it may be half-written."""

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pathspec import GitIgnoreSpec
from tree_sitter import Node, Parser

from dg_lsp.context.document import Snapshot
from dg_lsp.context.exclusion import ExclusionReason, path_of
from dg_lsp.context.languages import grammar_of
from dg_lsp.server.documents import Document, DocumentStore

LOOKED_AT = 40_000
"""Characters of a buffer's beginning: imports stand there."""
_STATEMENT = re.compile(
    r"^[ \t]*((?:from[ \t]+[.\w]+[ \t]+import[ \t]+|import[ \t]+)(?:\([^)]*\)|(?:[^\n\\(]|\\\n)+))", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Import:
    """One name that a statement brings."""

    module: str
    level: int
    """Dots before the module."""
    name: str
    """What is taken from the module; empty for the module itself, `*` for all of it."""
    bound: str
    """What it is called here; dotted for a module that is named whole."""


def imports_of(text: str) -> tuple[Import, ...]:
    """In the order of the buffer; what does not parse, alone, is left out."""
    found: list[Import] = []
    for match in _STATEMENT.finditer(text[:LOOKED_AT]):
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
"""Characters of a constant's line."""
MAX_MEMBERS = 24
"""Of a class."""
_DEFINITIONS = ("function_definition", "class_definition")


@dataclass(frozen=True, slots=True)
class Outline:
    """One file's top level."""

    definitions: dict[str, str]
    """Source of each name's definition without its body, in the order of the file."""


def outline_of(text: str) -> Outline:
    """The definitions of a file, whole or half-written. Of a name defined twice, the last."""
    tree = Parser(grammar_of("tree_sitter_python")).parse(text.encode())
    found: dict[str, str] = {}
    for node in tree.root_node.children:
        inner = _defined(node)
        if inner is not None:
            found[_text(inner.child_by_field_name("name"))] = _definition(inner)
        elif (constant := _constant(node)) is not None:
            found[constant[0]] = constant[1]
    return Outline({name: shown for name, shown in found.items() if name and shown})


def _defined(node: Node) -> Node | None:
    """The function or class of a statement, decorated or not."""
    inner = node.child_by_field_name("definition") if node.type == "decorated_definition" else node
    return inner if inner is not None and inner.type in _DEFINITIONS else None


def _definition(node: Node) -> str:
    if node.type == "function_definition":
        return _signature(node) + _said(node, "    ", "...")
    body = node.child_by_field_name("body")
    members = []
    for child in body.children if body is not None else ():
        inner = _defined(child)
        if inner is not None and inner.type == "function_definition" and not _is_private(inner):
            members.append(f"    {_signature(inner)} ...")
        elif _constant(child) is not None:
            members.append("    " + " ".join(_text(child).split())[:MAX_VALUE])
    shown = "".join(f"\n{line}" for line in members[:MAX_MEMBERS])
    return _signature(node) + _said(node, "    ", "" if shown else "...") + shown


def _signature(node: Node) -> str:
    """Up to the body, on one line."""
    body, source = node.child_by_field_name("body"), node.text or b""
    size = body.start_byte - node.start_byte if body is not None else len(source)
    head = source[:size].decode("utf-8", "replace")
    code = [line.partition("  #")[0] for line in head.split("\n")]
    return " ".join(" ".join(code).split()).replace("( ", "(").replace(", )", ")").replace(" )", ")")


def _said(node: Node, indentation: str, otherwise: str) -> str:
    """The first line of a docstring, else what stands for a body."""
    body = node.child_by_field_name("body")
    first = body.children[0] if body is not None and body.children else None
    if first is not None and first.type == "expression_statement" and first.children[0].type == "string":
        words = _text(first).strip("rRuUbB").strip("\"'").strip().split("\n")[0].strip()
        return f'\n{indentation}"""{words}"""'
    return f" {otherwise}" if otherwise else ""


def _constant(node: Node) -> tuple[str, str] | None:
    """Name and line of a plain assignment or an annotation."""
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


MAX_BYTES = 500_000
"""Of a file that is read for what it defines."""


class VisibleFiles:
    """See `symbols.workspace.Files`."""

    def __init__(
        self, documents: Callable[[], DocumentStore], why: Callable[[Snapshot], ExclusionReason | None]
    ) -> None:
        """`why` tells why a buffer must not be shown, None where it may."""
        self._documents = documents
        self._why = why

    def stamp(self, path: Path) -> object | None:
        """See `Files.stamp`. Settings and .gitignore files may change, so they are asked each time."""
        if (document := self._open(path)) is not None:
            return None if self._why(document.snapshot()) else (document.version, id(document))
        try:
            seen = path.stat()
        except (OSError, ValueError):
            return None
        is_shown = seen.st_size <= MAX_BYTES and path.is_file() and not self._why(_snapshot(path, ""))
        return (seen.st_mtime_ns, seen.st_size, seen.st_ino) if is_shown else None

    def text(self, path: Path) -> str | None:
        """See `Files.text`. A link is what it leads to."""
        if (document := self._open(path)) is not None:
            return document.lines.text
        try:
            text = path.read_text(encoding="utf-8")
            target = path.resolve()
        except (OSError, ValueError):
            return None
        return None if self._why(_snapshot(target, text)) else text

    def _open(self, path: Path) -> Document | None:
        wanted = path.as_posix().lstrip("/")
        return next((one for one in self._documents().all() if path_of(one.uri) == wanted), None)


def _snapshot(path: Path, text: str) -> Snapshot:
    return Snapshot(path.as_uri(), 0, text, "python")


NAME = ".gitignore"


@dataclass(frozen=True, slots=True)
class _GitignoreFile:
    """One file's patterns, as of a time in nanoseconds."""

    changed: int
    spec: GitIgnoreSpec


class GitignoreFiles:
    """The files of some folders, each a root of its own."""

    def __init__(self, roots: Iterable[str] = ()) -> None:
        """`roots` are file URIs."""
        self.roots: Sequence[Path] = tuple(Path("/" + path_of(uri)) for uri in roots if uri.startswith("file:"))
        self._read: dict[Path, _GitignoreFile] = {}

    @property
    def folder(self) -> Path | None:
        """The first root; None if there is none on this machine."""
        return next(iter(self.roots), None)

    def has(self, uri: str) -> bool:
        """Whether a file is ignored: the .gitignore nearest to it that says anything decides."""
        path = Path("/" + path_of(uri))
        root = next((root for root in self.roots if path.is_relative_to(root)), None)
        if root is None or path == root:
            return False
        # an ignored folder hides what is in it, whatever a file further in says
        steps = [path, *path.parents]
        inside = steps[: steps.index(root)]
        return any(self._is_named(step, root, is_folder=step != path) for step in reversed(inside))

    def _is_named(self, path: Path, root: Path, *, is_folder: bool) -> bool:
        for folder in path.parents:
            spec = self._spec(folder / NAME)
            if spec is not None:
                shown = path.relative_to(folder).as_posix() + ("/" if is_folder else "")
                verdict = spec.check_file(shown).include
                if verdict is not None:
                    return verdict
            if folder == root:
                break
        return False

    def _spec(self, path: Path) -> GitIgnoreSpec | None:
        try:
            changed = path.stat().st_mtime_ns
            known = self._read.get(path)
            if known is None or known.changed != changed:
                lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
                known = self._read[path] = _GitignoreFile(changed, GitIgnoreSpec.from_lines(lines))
        except (OSError, ValueError):  # not there, not readable, or patterns that mean nothing
            return None
        return known.spec
