"""What a Python file defines, each thing in a line or a few: what somebody who imports it has to know."""

from dataclasses import dataclass

from tree_sitter import Node, Parser

from dg_lsp.postprocess.language import grammar_of

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
