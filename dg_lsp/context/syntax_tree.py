"""What a grammar finds in a text: blocks of whole lines, and whether a place is in a comment or a string."""

from collections.abc import Iterator
from enum import StrEnum

from tree_sitter import Node, Parser, Tree

from dg_lsp.context.languages import grammar_of, language_of

MAX_CHARS = 400_000  # longer texts are not parsed at every key


class Inside(StrEnum):
    """What a place is inside of."""

    COMMENT = "comment"
    STRING = "string"
    CODE_IN_STRING = "code in a string"  # as in an f-string


def whole_line_nodes(text: str, language_id: str, max_lines: int) -> Iterator[tuple[int, int]]:
    """First and last line of each node that fills 2 to `max_lines` whole lines, without comments and errors."""
    if (tree := _parse(text.encode(), language_id)) is None:
        return
    lines = text.encode().split(b"\n")
    waiting = [tree.root_node]
    while waiting:
        node = waiting.pop()
        (first, start), (last, end) = node.start_point, node.end_point
        if end == 0 and last > first:  # some nodes contain their line end
            last, end = last - 1, len(lines[last - 1])
        if last == first:
            continue
        waiting += node.named_children
        is_whole = not lines[first][:start].strip() and not lines[last][end:].strip()
        if is_whole and last - first < max_lines and not node.has_error and "comment" not in node.type:
            yield first, last


def inside(text: str, offset: int, language_id: str) -> Inside | None:
    """What code-point offset `offset` is inside of; None in other code and without a grammar.

    A string that is not closed counts if a quote at the cursor would close it.
    """
    if len(text) > MAX_CHARS:
        return None
    before, after = text[:offset].encode(), text[offset:].encode()
    found = _inside(before, after, language_id)
    if found is None:
        line, language = text[:offset].rpartition("\n")[2], language_of(language_id)
        quotes = [quote for quote in language.quotes if quote in line]
        quotes += [quote for quote in language.multiline if quote in text[:offset]]
        closed = (_inside(before, quote.encode() + after, language_id) for quote in quotes)
        found = next((one for one in closed if one is Inside.STRING), None)
    return found


def _inside(before: bytes, after: bytes, language_id: str) -> Inside | None:
    if (tree := _parse(before + after, language_id)) is None:
        return None
    place = len(before)
    # the node to the left: at its end a line comment goes on
    node = tree.root_node.descendant_for_byte_range(max(0, place - 1), place)
    while node is not None:
        if "comment" in node.type and node.start_byte < place and not _is_closed(node, place):
            return Inside.COMMENT
        if node.start_byte < place < node.end_byte:
            # YAML's `string_scalar` has no quotes
            if node.type.endswith("quote_scalar") or ("string" in node.type and node.type != "string_scalar"):
                return Inside.STRING
            if "interpolat" in node.type or "substitution" in node.type:
                return Inside.CODE_IN_STRING
        node = node.parent
    return None


def _is_closed(comment: Node, place: int) -> bool:
    text = comment.text or b""
    return place >= comment.end_byte and text.endswith((b"\n", b"*/", b"-->", b"]]", b"=end"))


def _parse(data: bytes, language_id: str) -> Tree | None:
    grammar = grammar_of(language_of(language_id).grammar)
    return None if grammar is None else Parser(grammar).parse(data)
