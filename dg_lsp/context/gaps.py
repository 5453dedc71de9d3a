"""Finds gaps: the placeholders in a selection that are to be filled.

`...` where a statement or a value belongs, a bare `pass`, a line with a TODO comment, and an argument that is missing.
A TODO comment above a placeholder belongs to it: the model sees the comment, and the fill replaces both. A language
without a grammar, and a text that takes too long to be parsed, have only lines of `...` and TODO lines.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from tree_sitter import Node

from dg_lsp.context.document import LINE_END, Snapshot, TextStyle, indentation_of, line_start
from dg_lsp.context.languages import grammar_of, language_of
from dg_lsp.context.syntax_tree import MAX_CHARS, LimitedParser

STAND_IN = "..."  # for an argument that is missing: the text parses while other gaps are filled
_TODO = re.compile(r"\W{0,4}\s*TODO\b")
_LINE = re.compile(r"[^\r\n]+")
_DOTS = re.compile(r"[ \t]*(\.\.\.|…)[ \t]*")
_MISSING = re.compile(
    r"(?<=[(,])[ \t]*(?=,)"  # f(, a) and f(a, , b)
    r"|(?<=[\w\])]=)[ \t]*(?=[,)])"  # f(key=)
    r"|(?<=\w\()[ \t]+(?=\))|(?<=,)[ \t]+(?=\))"  # f( ) and f(a, ), which formatters do not leave
)
_ANY = re.compile(rf"\.\.\.|…|\bpass\b|\bTODO\b|{_MISSING.pattern}")
"""Where it does not match, there is no gap, and the text need not be parsed."""
_TEXTS = ("comment", "string")
_CALLS = ("argument_list", "arguments", "value_arguments")
_LISTS = ("list", "tuple")  # Callable[[...], int]
_DOTS_THAT_MEAN_SOMETHING = ("subscript", "type", "slice", "generic_type", "type_parameter")


@dataclass(frozen=True, slots=True, order=True)
class Gap:
    """A placeholder: `[start, end)` of the text, which may be empty."""

    start: int
    end: int
    hint: str = ""
    """A comment about the code that belongs there. It is a part of the placeholder."""

    def lead(self, text: str) -> str:
        """What the model sees before the fill: the hint on a line of its own, or nothing."""
        indentation = text[line_start(text, self.start) : self.start]
        return self.hint + TextStyle.of(text, self.start).line_end + indentation if self.hint else ""


def find_gaps(snapshot: Snapshot, start: int, end: int) -> tuple[Gap, ...]:
    """The gaps inside `[start, end)`, in order; they do not touch."""
    text = snapshot.text
    language = language_of(snapshot.language)
    if not _ANY.search(text, start, end + 1):
        return ()
    grammar = grammar_of(language.grammar) if len(text) <= MAX_CHARS else None
    root = None if grammar is None else LimitedParser(grammar).root(text)
    gaps = set(_in_tree(text, root, range(start, end + 1)) if root is not None else ())
    if root is None or language.id != "python":
        gaps |= set(_in_lines(text, language.comment or "#"))
    inside = (gap for gap in sorted(gaps) if start <= gap.start and gap.end <= end)
    mark = re.escape(language.comment or "#")
    lines_below = re.compile(rf"(?:[ \t]*(?:\r\n?|\n)[ \t]*{mark}(?!{_TODO.pattern})[^\r\n]*)*")
    return _merged(text, (_continued(text, gap, lines_below, end) if gap.hint else gap for gap in inside))


def _continued(text: str, gap: Gap, lines_below: re.Pattern[str], end: int) -> Gap:
    """The gap of a comment with the lines below that go on with the comment."""
    match = lines_below.match(text, gap.end, end)
    last = match.end() if match else gap.end
    return Gap(gap.start, last, text[gap.start : last])


def _in_lines(text: str, comment: str) -> Iterator[Gap]:
    for line in _LINE.finditer(text):
        code = line[0].strip()
        first = line.start() + len(indentation_of(line[0]))
        is_todo = code.startswith((comment, "//", "/*", "--")) and _TODO.match(code)
        if is_todo or _DOTS.fullmatch(line[0]):
            yield Gap(first, first + len(code), code if is_todo else "")


def _in_tree(text: str, root: Node, selection: range) -> Iterator[Gap]:
    data = text.encode("utf-8", "replace")
    # offsets of the tree are bytes
    offsets = np.concatenate(([0], np.cumsum((np.frombuffer(data, np.uint8) & 0xC0) != 0x80))).tolist()
    first, last = (bisect_left(offsets, at) for at in (selection.start, selection.stop))
    waiting = [(root, "")]
    calls = list[range]()
    texts = list[range]()
    while waiting:
        node, holder = waiting.pop()
        where = range(offsets[node.start_byte], offsets[node.end_byte])
        inner = holder if node.type in _LISTS else node.type
        children = (child for child in node.children if child.end_byte >= first and child.start_byte <= last)
        waiting.extend((child, inner) for child in children)
        if any(name in node.type for name in _TEXTS):
            texts.append(where)
            is_own_line = not text[line_start(text, where.start) : where.start].strip()
            comment = text[where.start : where.stop].rstrip()  # the grammar includes a carriage return
            if "comment" in node.type and is_own_line and _TODO.match(comment):
                yield Gap(where.start, where.start + len(comment), comment)
        elif node.type in _CALLS:
            calls.append(where)
        elif node.type == "pass_statement" or (node.type == "ellipsis" and holder not in _DOTS_THAT_MEAN_SOMETHING):
            yield Gap(where.start, where.stop)
    for match in _MISSING.finditer(text, selection.start, selection.stop):
        is_error = root.has_error and (text[match.end()] == "," or text[match.start() - 1] == "=")
        is_call = is_error or any(match.start() > call.start and match.end() < call.stop for call in calls)
        if is_call and not any(match.start() in known for known in texts):
            yield Gap(match.start() + (match.end() > match.start() and text[match.start() - 1] == ","), match.end())


def _merged(text: str, gaps: Iterable[Gap]) -> tuple[Gap, ...]:
    """Joins a comment and the placeholder below it to one gap."""
    merged = list[Gap]()
    for gap in gaps:
        above = merged[-1] if merged and merged[-1].hint else None
        between = text[above.end : gap.start] if above else ""
        if above and not between.strip() and len(LINE_END.findall(between)) == 1:
            hint = above.hint + (between + gap.hint if gap.hint else "")
            merged[-1] = Gap(above.start, gap.end, hint)
        else:
            merged.append(gap)
    return tuple(merged)
