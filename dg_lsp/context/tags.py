"""Words of the import statements of a buffer, and definitions of a file by the `tags` query of its grammar."""

import importlib
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from textwrap import dedent

from tree_sitter import Node, Query, QueryError

from dg_lsp.context.exclusion import cut
from dg_lsp.context.languages import Language, grammar_of, language_of
from dg_lsp.context.snippets import Words
from dg_lsp.context.syntax_tree import matches_of

log = logging.getLogger(__name__)

MAX_IMPORT_CHARS = 40_000
"""Characters at the beginning of a buffer that are searched for imports."""
MAX_VALUE = 100
"""Characters shown of a constant in a class."""
MAX_SIGNATURE = 400
"""Characters shown of a signature or of a line."""
MAX_MEMBERS = 24
"""Members shown of a class, and lines shown of any other definition."""
_IMPORT = re.compile(
    r"^[ \t]*(?:(?P<exported>export|const|let|var|local)|#[ \t]*include"
    r"|(?:pub(?:\([^()\n]*\))?[ \t]+)?(?:import|from|use|using|mod|(?:require|include)\w*))\b"
    r"(?:[^\n\\({]|\\\r?\n|\((?:[^()]|\([^()]{0,400}\)){0,2000}+\)|\{(?:[^{};]|\{[^{};]{0,400}\}){0,2000}+\}|[\\({])*+",
    re.MULTILINE,
)
"""An import statement in any language, up to the end of a line in no bracket; one of `exported` may be another one."""
_MODULE = re.compile(r"\bfrom\s*[\"']|\brequire\b")
_BODY = re.compile("(?:.*_)?(?:body|block|declaration_list)")
_CALLABLE = ("function", "method", "macro")
_HOLDERS = ("class", "interface", "module")
"""Kinds of definitions whose members are shown."""
_PRIVATE = re.compile(r"private\b|#")
_DEPTH = 5
"""Nodes from a definition to the function that is its value."""


def imports_of(text: str) -> tuple[Words, ...]:
    """The words of each import statement at the beginning of a buffer, which may be incomplete.

    They are names of modules, which are those of files and folders, and of definitions in these files.
    """
    statements = _IMPORT.finditer(text, 0, MAX_IMPORT_CHARS)
    return tuple(
        frozenset(re.findall(r"\w+", statement[0]))
        for statement in statements
        if statement["exported"] is None or _MODULE.search(statement[0])
    )


@dataclass(slots=True)
class _Definition:
    """A definition while the tree is read."""

    name: str
    kind: str  # of the capture: class, function, constant
    node: Node
    code: str  # of its statement, which may begin before the node, with blanks up to there
    head: str  # up to its body, on one line
    members: list["_Definition"] = field(default_factory=list)


def definitions_of(text: str, language_id: str) -> dict[str, str]:
    """Signature or first lines of each definition that is in no other one, by name, in the order of the file.

    The file may be incomplete. The last definition of a name counts.
    """
    language = language_of(language_id)
    query = _tags_query(language.id)
    grammar = grammar_of(language.grammar)
    if query is None or grammar is None:
        return {}
    source = text.encode("utf-8", "replace")
    definitions: dict[int, _Definition] = {}
    for captures in matches_of(query, text, grammar):
        capture = next((name for name in captures if name.startswith("definition.")), "")
        if not capture or "name" not in captures:
            continue
        kind = capture.removeprefix("definition.")
        name = captures["name"][0]
        known = definitions.get(name.start_byte)
        if known is None or (kind in _CALLABLE and known.kind not in _CALLABLE):  # the value of a constant
            definitions[name.start_byte] = _definition(name, kind, captures[capture][0], source, language)
    outermost = {definition.name: definition for definition in _nested([*definitions.values()])}
    return {name: shown for name, definition in outermost.items() if (shown := _shown(definition))}


def _definition(name: Node, kind: str, node: Node, source: bytes, language: Language) -> _Definition:
    """A definition with its code. `export`, or the type of a function in C, precedes the node on its line."""
    line_start = source.rfind(b"\n", 0, node.start_byte) + 1
    before = source[line_start : node.start_byte]
    outer_end = max(before.rfind(mark) for mark in (b"{", b";", b"(", b"}")) + 1
    start = node.start_byte - len(before[outer_end:].lstrip())
    body = _body(node)
    code = source[start : node.end_byte].decode("utf-8", "replace")
    head = source[start : node.end_byte if body is None else body.start_byte].decode("utf-8", "replace")
    if language.comment:
        head = "\n".join(line.partition(f" {language.comment}")[0] for line in head.split("\n"))
    head = re.sub(r"(?<=\() |,? (?=\))", "", " ".join(head.split()))
    shown_head = cut(head.rstrip("{= "), MAX_SIGNATURE)
    return _Definition(_text(name), kind, node, " " * (start - line_start) + code, shown_head)


def _nested(definitions: list[_Definition]) -> Iterator[_Definition]:
    """The definitions that are in no other one; the others become members of the nearest class around them."""
    around: list[_Definition] = []
    for definition in sorted(definitions, key=lambda known: (known.node.start_byte, -known.node.end_byte)):
        while around and around[-1].node.end_byte < definition.node.end_byte:
            around.pop()
        if not around:
            yield definition
        elif around[-1].kind in _HOLDERS:
            around[-1].members.append(definition)
        around.append(definition)


def _shown(definition: _Definition) -> str:
    """The signature of a function, the members of a class, or the first lines of any other definition."""
    if definition.kind in _CALLABLE:
        return _signature(definition)
    if definition.members:
        public = [member for member in definition.members if not re.match("_(?!_init__)", member.name)]
        lines = [line for line in map(_member, public) if not _PRIVATE.match(line)]
        return "\n    ".join([definition.head, *lines[:MAX_MEMBERS]])
    if definition.kind == "module":  # `namespace a;`, `mod a;`
        return ""
    lines = dedent(definition.code).rstrip().splitlines()[:MAX_MEMBERS]
    return "\n".join(cut(line, MAX_SIGNATURE) for line in lines)


def _member(definition: _Definition) -> str:
    if definition.kind in (*_CALLABLE, *_HOLDERS):
        return _signature(definition)
    return cut(" ".join(definition.code.split()), MAX_VALUE)


def _signature(definition: _Definition) -> str:
    return f"{definition.head} ..." if definition.head.endswith(":") else definition.head


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


@cache
def _tags_query(language_id: str) -> Query | None:
    """The `tags` query of a language; None without one, or if its grammar is not installed."""
    language = language_of(language_id)
    languages = (*map(language_of, language.like), language)
    grammar = grammar_of(language.grammar)
    if grammar is None:
        return None
    modules = dict.fromkeys(relative.grammar.partition(":")[0] for relative in languages)
    queries = [getattr(importlib.import_module(module), "TAGS_QUERY", None) or "" for module in modules]
    source = "\n".join([*(relative.tags for relative in languages), *queries])
    if "@definition." not in source:
        return None
    try:
        query = Query(grammar, source)
    except QueryError as error:  # a grammar with other names
        log.warning("nothing is read from imported files in %s: %s", language_id, error)
        return None
    for number in range(query.pattern_count):
        pattern = source.encode()[query.start_byte_for_pattern(number) : query.end_byte_for_pattern(number)]
        if b"@definition." not in pattern:  # a reference
            query.disable_pattern(number)
    return query


def _text(node: Node) -> str:
    return (node.text or b"").decode("utf-8", "replace")
