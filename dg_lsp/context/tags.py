"""Definitions and imports of a file, found with the `tags` query of its grammar and the queries of languages.toml."""

import importlib
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, lru_cache
from textwrap import dedent

from tree_sitter import Node, Query, QueryError

from dg_lsp.context.exclusion import cut
from dg_lsp.context.languages import Language, grammar_of, language_of
from dg_lsp.context.syntax_tree import matches_of

log = logging.getLogger(__name__)

MAX_IMPORT_CHARS = 40_000
"""Characters at the beginning of a buffer that are searched for imports."""
MAX_STATEMENT = 4000
"""Longest import statement."""
ALL = "*"
_BRACES = r"\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}"
_STATEMENT = re.compile(  # a line that may import something, in any language, with its brackets
    r"^[ \t]*(?:pub\b[^\n;]*?|(?:local|const|let|var)\b[^\n;(){}=]*(?:\{[^{}]*\}\s*)?=\s*)?"
    r"(?:#[ \t]*include|import|from|use|mod|require(?:_\w+)?|include(?:_once)?"
    r"|export(?=[\s\w]*(?:\{[^{}()]*\}\s*from|\*)))\b"
    rf"(?:\([^)]{{0,{MAX_STATEMENT}}}\)|{_BRACES}|\\(?:\r?\n)?|[^\n\\(){{}}])*",
    re.MULTILINE,
)
_KEYWORDS = re.compile(r"(?:pub(?:\([^)]*\))?|use|import|static|function|const)(?=\s)")
_GROUP = re.compile(r"(.*?)\{(.*)\}\s*", re.DOTALL)
_ITEM = re.compile(rf"(?:{_BRACES}|[^,{{}}])+")
_SEPARATOR = re.compile(r"::|[.\\]")
_BODY = re.compile("(?:.*_)?(?:body|block|declaration_list)")
_WRAPPERS = frozenset((
    *("export_statement", "lexical_declaration", "variable_declaration", "variable_declarator", "expression_statement"),
    *("function_definition", "declaration", "field_declaration", "pointer_declarator", "reference_declarator"),
    *("type_declaration", "var_declaration", "const_declaration", "template_declaration", "assignment_statement"),
    *("variable_list", "assignment"),
))  # fmt: skip
"""Nodes that are shown with the definition in them: the type of a C function, `export` and `const`."""
_CALLABLE = frozenset(("function", "method", "macro"))
_VALUES = frozenset(("constant", "field", "variable"))
_HOLDERS = frozenset(("class", "interface", "module"))
"""Kinds of definitions whose members are shown."""
_PRIVATE = re.compile(r"^\s*private\b")
_DEPTH = 5
"""Nodes from a statement to the function that is its value."""
MAX_VALUE = 100
"""Characters shown of a constant."""
MAX_SIGNATURE = 400
"""Characters shown of a signature."""
MAX_MEMBERS = 24
"""Members shown of a class, and lines of a structure."""


@dataclass(frozen=True, slots=True)
class Import:
    """One imported name."""

    module: str  # as written; the parts of a path of names are separated by `/`
    name: str  # the imported name; empty for the module itself, `*` for all of its names
    bound: str  # the name in the importing file


@dataclass(slots=True)
class _Definition:
    """A definition while the tree is read."""

    name: str
    kind: str  # of the capture: class, function, constant
    node: Node
    container: str = ""  # name of the type that a method written outside of it belongs to
    doc: Node | None = None
    members: list["_Definition"] = field(default_factory=list)
    methods: list["_Definition"] = field(default_factory=list)  # written outside of it


def imports_of(text: str, language_id: str) -> tuple[Import, ...]:
    """The imports in the order of the buffer. Statements are parsed one by one, so the rest may be incomplete code."""
    if _query(language_of(language_id).id, "imports") is None:
        return ()
    statements = (match[0].strip() for match in _STATEMENT.finditer(text[:MAX_IMPORT_CHARS]))
    return tuple(imported for code in statements for imported in _imports_in(code[:MAX_STATEMENT], language_id))


@lru_cache(maxsize=4096)
def _imports_in(statement: str, language_id: str) -> tuple[Import, ...]:
    language = language_of(language_id)
    query = _query(language.id, "imports")
    if query is None:
        return ()
    matches = _matches(query, f"{statement}\n", language)
    imports = dict.fromkeys(imported for captures in matches for imported in _imports(captures))
    bound = {imported.module for imported in imports if imported.bound}
    # a whole module is imported only where no name of it is
    return tuple(imported for imported in imports if imported.bound or imported.module not in bound)


def _imports(captures: dict[str, list[Node]]) -> Iterator[Import]:
    """The imports of one match of a query: `@path`, `@child`, or `@module` with `@name`, `@alias` and `@all`."""
    shown = {name: _text(nodes[0]) for name, nodes in captures.items()}
    if path := shown.get("path"):
        while keyword := _KEYWORDS.match(path):
            path = path[keyword.end() :].strip()
        yield from map(_import, _expanded(path.strip().rstrip(";").strip()))
    elif child := shown.get("child"):
        yield Import("self", child, child)
    elif (module := shown.get("module", "").strip("\"'`")) and not captures["module"][0].has_error:
        if "all" in shown:
            yield Import(module, ALL, ALL)
        elif "any" in shown:  # a default export has the name that the importing file gives to it
            yield Import(module, shown["alias"], shown["alias"])
            yield Import(module, "", shown["alias"])
        else:
            name = shown.get("name", "")
            yield Import(module, name, shown.get("alias") or name or module.rpartition("/")[2])


def _expanded(path: str) -> Iterator[str]:
    """`a::{b, c::{d, e}}` as `a::b`, `a::c::d`, `a::c::e`."""
    group = _GROUP.fullmatch(path)
    if group is None:
        yield path
        return
    for item in _ITEM.findall(group[2]):
        for inner in _expanded(item.strip()):
            if inner:
                yield group[1].strip() + inner


def _import(path: str) -> Import:
    path, _, alias = (part.strip() for part in path.partition(" as "))
    parts = [part for part in _SEPARATOR.split(path) if part]
    if len(parts) > 1 and parts[-1] == "self":
        parts.pop()
    name = parts.pop() if parts else ""
    return Import("/".join(parts), name, alias or name)


def definitions_of(text: str, language_id: str) -> dict[str, str]:
    """Signature or first lines of each definition of a file that is in no function, by name, in the order of the file.

    The file may be incomplete. The last definition of a name counts.
    """
    language = language_of(language_id)
    query = _query(language.id, "tags")
    if query is None:
        return {}
    definitions: dict[tuple[int, int], _Definition] = {}
    for captures in _matches(query, text, language):
        capture = next((name for name in captures if name.startswith("definition.")), "")
        if not capture or "name" not in captures:
            continue
        kind = capture.removeprefix("definition.")
        node = captures[capture][0]
        name = captures["name"][0]
        place = name.start_byte, name.end_byte
        definition = definitions.setdefault(place, _Definition(_text(name), kind, node))
        if kind in _CALLABLE and definition.kind not in _CALLABLE:  # a function that is the value of a constant
            definition.kind, definition.node = kind, node
        definition.container = definition.container or _text(next(iter(captures.get("container", ())), None))
        definition.doc = definition.doc or next(iter(captures.get("doc", ())), None)
        if "container" in captures:
            definition.kind = "method"
    ordered = sorted(definitions.values(), key=_outermost_first)
    outermost = {definition.name: definition for definition in _nested(ordered)}
    for definition in definitions.values():
        if definition.container in outermost:
            outermost[definition.container].methods.append(definition)
    return {name: shown for name, definition in outermost.items() if (shown := _shown(definition, language))}


def _outermost_first(definition: _Definition) -> tuple[int, int]:
    return definition.node.start_byte, -definition.node.end_byte


def _nested(definitions: list[_Definition]) -> Iterator[_Definition]:
    """The definitions that are in no other one; the others become members of the nearest one around them."""
    around: list[_Definition] = []
    for definition in definitions:
        while around and around[-1].node.end_byte < definition.node.end_byte:
            around.pop()
        if around:
            if around[-1].kind in _HOLDERS:
                around[-1].members.append(definition)
        elif not definition.container and (definition.kind != "method" or _is_at_top(definition.node)):
            yield definition
        around.append(definition)


def _is_at_top(node: Node) -> bool:
    return node.parent is None or node.parent.parent is None


def _shown(definition: _Definition, language: Language) -> str:
    """A definition as it is shown: the signature, the first line of its docstring, and its members."""
    whole = _whole(definition.node)
    if definition.kind in _VALUES:
        return _line(definition, language)
    lines = [_summary(definition.doc)] if definition.doc else []
    if definition.kind in _CALLABLE:
        return _head(whole, language) + ("".join(f"\n    {line}" for line in lines) or _ending(language))
    methods = _methods(definition.methods, language)
    if definition.kind == "module" and not definition.members:  # `namespace a;`, `mod a;`
        return ""
    if definition.kind not in _HOLDERS or not (definition.members or language.indents):
        return "\n".join([_written(whole), *methods])
    lines += _lines(definition.members, language)
    head = _block(whole, lines, language) if lines else _head(whole, language) + _ending(language)
    return "\n".join([head, *methods])


def _block(node: Node, lines: list[str], language: Language) -> str:
    """The head of a class with lines as its body."""
    start, end = (" {", "\n}") if _text(_body(node)).startswith("{") else ("", "")
    return _head(node, language) + start + "".join(f"\n    {line}" for line in lines) + end


def _methods(methods: list[_Definition], language: Language) -> list[str]:
    """Methods that are written outside of their type: lines, or the block that they are in."""
    lines = _lines(methods, language)
    parent = methods[0].node.parent if lines else None
    block = parent.parent if parent is not None and _BODY.fullmatch(parent.type) else None
    return [_block(block, lines, language)] if block is not None else lines


def _lines(members: list[_Definition], language: Language) -> list[str]:
    """A line for each of the first public members."""
    public = [member for member in members if not member.name.startswith("_") or member.name == "__init__"]
    lines = [_line(member, language) for member in public]
    return [line for line in lines if not _PRIVATE.search(line)][:MAX_MEMBERS]


def _line(definition: _Definition, language: Language) -> str:
    """A value with its name, or the head of a definition."""
    whole = _whole(definition.node)
    if definition.kind in _VALUES:
        return cut(" ".join(_text(whole).split()), MAX_VALUE)
    return _head(whole, language) + _ending(language)


def _ending(language: Language) -> str:
    return " ..." if language.indents else ""


def _whole(node: Node) -> Node:
    """The statement of a definition, without its decorators; in a group such as `const ( ... )` the definition."""
    while (
        (parent := node.parent) is not None
        and parent.type in _WRAPPERS
        and not any(child.type == "(" for child in parent.children)
    ):
        node = parent
    return node


def _body(node: Node) -> Node | None:
    """The body of a function or a class, also of one that is the value of a variable."""
    for _ in range(_DEPTH):
        body = node.child_by_field_name("body")
        if body is None:
            body = next((child for child in node.children if _BODY.fullmatch(child.type)), None)
        if body is not None or not node.named_children:
            return body
        node = node.named_children[-1]
    return None


def _head(node: Node, language: Language) -> str:
    """The definition up to its body, on one line."""
    body, source = _body(node), node.text or b""
    size = body.start_byte - node.start_byte if body is not None else len(source)
    lines = source[:size].decode("utf-8", "replace").split("\n")
    code = [line.partition(f" {language.comment}")[0] for line in lines] if language.comment else lines
    head = " ".join(" ".join(code).split()).replace("( ", "(").replace(", )", ")").replace(" )", ")")
    return cut(head.rstrip("{= "), MAX_SIGNATURE)


def _written(node: Node) -> str:
    """The first lines of a definition as they are in the file."""
    lines = dedent(" " * node.start_point.column + _text(node)).rstrip().splitlines()
    return "\n".join(cut(line, MAX_SIGNATURE) for line in lines[:MAX_MEMBERS])


def _summary(doc: Node | None) -> str:
    """The first line of a docstring."""
    summary = _text(doc).strip("rRuUbB").strip("\"'").strip().split("\n")[0].strip()
    return f'"""{summary}"""'


def _matches(query: Query, text: str, language: Language) -> list[dict[str, list[Node]]]:
    grammar = grammar_of(language.grammar)
    return matches_of(query, text, grammar) if grammar is not None else []


@cache
def _query(language_id: str, what: str) -> Query | None:
    """The `tags` or `imports` query of a language; None without one, or if its grammar is not installed."""
    language = language_of(language_id)
    languages = (*map(language_of, language.like), language)
    grammar = grammar_of(language.grammar) if any(relative.imports for relative in languages) else None
    if grammar is None:
        return None
    sources = [getattr(relative, what) for relative in languages]
    if what == "tags":
        modules = dict.fromkeys(relative.grammar.partition(":")[0] for relative in languages)
        sources += [getattr(importlib.import_module(module), "TAGS_QUERY", None) or "" for module in modules]
    source = "\n".join(sources)
    try:
        query = Query(grammar, source)
    except QueryError as error:  # a grammar with other names
        log.warning("nothing is read from imported files in %s: %s", language_id, error)
        return None
    for number in range(query.pattern_count if what == "tags" else 0):
        pattern = source.encode()[query.start_byte_for_pattern(number) : query.end_byte_for_pattern(number)]
        if b"@definition." not in pattern:  # a reference
            query.disable_pattern(number)
    return query


def _text(node: Node | None) -> str:
    return (node.text or b"").decode("utf-8", "replace") if node is not None else ""
