"""Syntax checks with tree-sitter, whose grammars recover from errors: an unfinished buffer is the normal state.

Not checked by them: indentation, names, and errors that a grammar accepts (Python's accepts `print x`). Where the
result must not break a file, CPython's own parser decides.
"""

import ast
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from textwrap import dedent
from typing import Self

from tree_sitter import Node, Parser

from dg_lsp.context.document import Snapshot, TextStyle, depth_of, indentation_of
from dg_lsp.context.languages import Language, grammar_of, language_of
from dg_lsp.postprocess.text_edits import balance

REACH = 6000  # most characters parsed on each side of the cursor; a nearer landmark (`def`, `class`) cuts earlier
MAX_SHORTER = 6  # most lines that are removed from the end of a fill to make it valid
_BLOCK = re.compile("block|body|compound")  # part of the names that grammars give to the node of a block
_NO_EFFECT = frozenset(("pass_statement", "empty_statement", "ellipsis", "string", "concatenated_string"))


class Validity(IntEnum):
    """What CPython accepts of a text."""

    INVALID = 0
    PARSES = 1  # with an error that its compiler finds: `return` outside of a function
    COMPILES = 2


def python_validity(text: str) -> Validity:
    """What the Python that runs this program accepts of `text`. Nothing of it is executed."""
    source = text.removeprefix("\ufeff")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for validity, flags in ((Validity.COMPILES, 0), (Validity.PARSES, ast.PyCF_ONLY_AST)):
            try:
                compile(source, "<buffer>", "exec", flags, dont_inherit=True)
            except (SyntaxError, ValueError, RecursionError, MemoryError):  # a NUL, a lone surrogate, deep nesting
                continue
            return validity
    return Validity.INVALID


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The text around the cursor that is parsed, in the model's style, and its language."""

    above: str  # whole lines, with their ends
    line_prefix: str
    line_rest: str
    below: str  # from the end of the cursor's line
    language: Language

    @classmethod
    def of(cls, before: str, after: str, language: Language) -> Self | None:
        """The text from the last landmark above to the second one below, or about `REACH` characters each way.

        None if the language has no landmarks, or none is near: the text could begin inside a string.
        """
        if language.landmark is None:
            return None
        is_cut = len(before) > REACH
        start = before.find("\n", len(before) - REACH) + 1 if is_cut else 0
        line_start = before.rfind("\n") + 1
        above, line_prefix = before[min(start, line_start) : line_start], before[line_start:]
        line_rest, line_end, below = after[:REACH].partition("\n")
        landmarks = list(language.landmark.finditer(above + line_prefix))
        if is_cut and not landmarks:
            return None
        below = _to_landmark(below, language.landmark, is_cut=len(after) > REACH)
        # from the last landmark without indentation on, or from the first method if the class is cut off
        at_margin = [match.start() for match in landmarks if not match["indentation"]]
        first = at_margin[-1] if at_margin else landmarks[0].start() if is_cut else 0
        return cls(above[first:], line_prefix, line_rest, line_end + below, language)

    @classmethod
    def around(cls, snapshot: Snapshot, start: int, end: int, style: TextStyle) -> Self | None:
        """The surroundings of `[start, end)` in a buffer."""
        # twice the reach: tabs and line ends change lengths
        before = style.to_model(snapshot.text[max(0, start - 2 * REACH) : start])
        after = style.to_model(snapshot.text[end : end + 2 * REACH])
        return cls.of(before, after, language_of(snapshot.language))

    def keep_valid(self, fill: str) -> str | None:
        """The fill, or the closest version of it that adds no syntax error, or None.

        Tried in order: the fill; the fill with its open brackets closed; the fill without its last lines; the first
        line of an unfinished docstring.
        """
        if self.num_errors(fill) == 0:
            return fill
        num_before = self.num_errors("")
        # True if the existing error is on the cursor's line, which the fill should complete
        is_own_line = num_before > 0 and self._count(self.above + self.below) == 0
        if num_before and self._can_be_finished(fill, alone=not is_own_line):
            return fill
        num_allowed = 0 if is_own_line else num_before
        return next((text for text in self._versions(fill) if self.num_errors(text) <= num_allowed), None)

    def strands_block(self, fill: str) -> bool:
        """True if the next line is deeper than the fill's last line, which opens no block. Grammars accept that.

        False inside brackets and strings.
        """
        opener = self.language.block_opener
        following = next((line for line in self.below.split("\n") if line.strip()), "")
        if not opener or self.line_rest.strip() or not following:
            return False
        left = balance(self.above + self.line_prefix + fill, self.language.comment)
        if left.closers or left.quote:
            return False
        lines = [line for line in (self.line_prefix + fill).split("\n") if line.strip()]
        if not lines:
            return False
        code, mark, _ = lines[-1].partition(f" {self.language.comment}")  # marks inside strings are not recognised
        last = (code if mark and code.strip() else lines[-1]).rstrip()
        return bool(last) and depth_of(following) > depth_of(last) and not last.endswith((opener, "\\"))

    def _versions(self, fill: str) -> Iterator[str]:
        yield fill
        closers, quote = self._left_open(fill)
        # after a comma, an argument is missing, not a bracket
        if closers and not quote and not fill.rstrip().endswith(","):
            yield fill.rstrip() + closers
        lines = fill.split("\n")
        for num in range(len(lines) - 1, max(0, len(lines) - 1 - MAX_SHORTER), -1):
            shorter = "\n".join(lines[:num]).rstrip()
            if shorter.strip():
                yield shorter
        if len(quote) == 3 and not closers:
            yield lines[0].rstrip() + quote

    def _left_open(self, fill: str) -> tuple[str, str]:
        """Closers of the brackets and of the string that `fill` opens and does not close."""
        typed = balance(self.line_prefix, self.language.comment)
        whole = balance(self.line_prefix + fill, self.language.comment)
        closers = whole.closers[: max(0, len(whole.closers) - len(typed.closers))]
        return closers, "" if whole.quote == typed.quote else whole.quote

    def _can_be_finished(self, fill: str, *, alone: bool = False) -> bool:
        """True if the cursor's line is a valid beginning: closing its brackets and a usual ending make it parse."""
        if any(self._left_open(fill + self.line_rest)):
            return False
        line = self.line_prefix + fill + self.line_rest
        above, below = ("", "") if alone else (self.above, self.below)
        if alone and self.language.continuation and self.language.continuation.match(line):
            return True
        left = balance(line, self.language.comment)
        line += left.quote + left.closers
        endings = (ending.format(indentation=indentation_of(line)) for ending in self.language.endings)
        return any(self._count(above + line + ending + below) == 0 for ending in endings)

    def num_errors(self, fill: str) -> int:
        """Number of syntax errors of the text with `fill` at the cursor."""
        return self._count(self.above + self.line_prefix + fill + self.line_rest + self.below)

    def num_hollow(self, fill: str) -> int:
        """Number of blocks without a statement that does something, in the text with `fill` at the cursor.

        Counted: headers without a body, and bodies of `pass`, `...`, comments and strings only. Not counted: handlers
        of exceptions, and classes with a base.
        """
        waiting, num = [self._root(self.above + self.line_prefix + fill + self.line_rest + self.below)], 0
        while waiting:
            node = waiting.pop()
            waiting.extend(node.named_children)
            if node.child_by_field_name("superclasses") is None:
                bodies = (node.child_by_field_name(name) for name in ("body", "consequence"))
                num += any(body is not None and _BLOCK.search(body.type) and _is_hollow(body) for body in bodies)
        return num

    def empties(self, old: str, new: str) -> bool:
        """True if whole lines at the cursor contain statements, and `new` only comments, strings and the like.

        False inside brackets, where a string is an element.
        """
        if self.line_prefix.strip() or (self.line_rest.strip() and not old.endswith("\n")):
            return False
        if balance(self.above, self.language.comment).closers:
            return False
        is_hollow = [_is_hollow(self._root(dedent(self.line_prefix + text))) for text in (old, new)]
        return is_hollow == [False, True]

    def _root(self, text: str) -> Node:
        return Parser(grammar_of(self.language.grammar_module)).parse(text.encode()).root_node

    def _count(self, text: str) -> int:
        """Number of error and missing nodes in the syntax tree of `text`."""
        root = self._root(text)
        num, waiting = 0, [root] if root.has_error else []
        while waiting:
            node: Node = waiting.pop()
            num += node.is_error or node.is_missing
            waiting.extend(child for child in node.children if child.has_error or child.is_missing)
        return num


def _is_hollow(block: Node) -> bool:
    """True if no statement of the block does something."""
    statements = (node for node in block.named_children if "comment" not in node.type)
    # an expression alone; `"a",` has two children
    only = (
        node.child(0) if node.type == "expression_statement" and node.child_count == 1 else node for node in statements
    )
    return all(node is not None and node.type in _NO_EFFECT for node in only)


def _to_landmark(below: str, landmark: re.Pattern[str], *, is_cut: bool) -> str:
    """`below` up to its second landmark without indentation (decorators need the first one), or to a method."""
    found = list(landmark.finditer(below))
    at_margin = [match.start() for match in found if not match["indentation"]]
    if len(at_margin) < 2 and not is_cut:
        return below
    end = at_margin[1] if len(at_margin) > 1 else found[-1].start() if found else below.rfind("\n") + 1
    lines = below[:end].split("\n")
    while len(lines) > 1 and lines[-2].lstrip().startswith("@"):
        lines = [*lines[:-2], ""]
    return "\n".join(lines)
