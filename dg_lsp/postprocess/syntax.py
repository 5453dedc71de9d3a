"""Refuses what adds a syntax error, by a grammar that recovers from errors: an unfinished buffer is the normal state.

Not checked: indentation, names, anything that the grammar lets pass (Python's takes `print x` too).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from textwrap import dedent
from typing import Self

from tree_sitter import Node, Parser

from dg_lsp.postprocess.balance import balance
from dg_lsp.postprocess.language import Language, grammar_of

REACH = 8000
"""Characters parsed on each side of the cursor at most; a landmark (`def`, `class`) nearer by cuts earlier."""
MAX_SHORTER = 6
"""Ends of a long fill that are tried without their last lines."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The text around the cursor that a parser has to see, in the model's style, and its language."""

    above: str
    """Whole lines, with their ends."""
    line_prefix: str
    line_rest: str
    below: str
    """From the end of the cursor's line."""
    language: Language

    @classmethod
    def of(cls, before: str, after: str, language: Language) -> Self:
        """From the last landmark above to the second one below, or `REACH` characters each way."""
        start = 0 if len(before) <= REACH else before.find("\n", len(before) - REACH) + 1
        above, _, line_prefix = before[start:].rpartition("\n")
        line_rest, line_end, below = after[:REACH].partition("\n")
        if above or before[start:].startswith("\n"):
            above += "\n"
        if language.landmark:
            above, below = _from_landmark(above, line_prefix, language), _to_landmark(below, language)
        return cls(above, line_prefix, line_rest, line_end + below, language)

    def keep_valid(self, fill: str) -> str | None:
        """`fill` where it adds no syntax error, or the nearest thing to it that adds none, or None.

        Tried in order: the fill, the fill with the brackets closed that it left open, the fill without its last lines,
        the first line of a docstring that did not end.
        """
        if not self.language.grammar_module:
            return fill
        return next((text for text in self._versions(fill) if not self._adds_error(text)), None)

    def _versions(self, fill: str) -> Iterator[str]:
        yield fill
        closers, quote = self._left_open(fill)
        # after a comma more was to come than a bracket
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
        """What would close the brackets and the string that `fill` opens and leaves open."""
        typed = balance(self.line_prefix, self.language.comment)
        whole = balance(self.line_prefix + fill, self.language.comment)
        closers = whole.closers[: max(0, len(whole.closers) - len(typed.closers))]
        return closers, "" if whole.quote == typed.quote else whole.quote

    def _adds_error(self, fill: str) -> bool:
        num_after = self._count(self.above + self.line_prefix + fill + self.line_rest + self.below)
        if num_after == 0:
            return False
        num_before = self._count(self.above + self.line_prefix + self.line_rest + self.below)
        if num_before == 0:
            return True
        # the buffer is broken already: by the line under the cursor, which the fill should make whole, or elsewhere
        if self._count(self.above + self.below) == 0:
            return not self._can_be_finished(fill)
        return num_after > num_before and not self._can_be_finished(fill, alone=True)

    def _can_be_finished(self, fill: str, *, alone: bool = False) -> bool:
        """Whether the cursor's line is right so far: closing what the user had opened and going on makes it valid."""
        if any(self._left_open(fill + self.line_rest)):
            return False
        line = self.line_prefix + fill + self.line_rest
        above, below = ("", "") if alone else (self.above, self.below)
        if alone and self.language.continuation and self.language.continuation.match(line):
            return True
        line = dedent(line) if alone else line
        left = balance(line, self.language.comment)
        line += left.quote + left.closers
        indentation = line[: len(line) - len(line.lstrip())]
        endings = (ending.format(indentation=indentation) for ending in self.language.endings)
        return any(self._count(above + line + ending + below) == 0 for ending in endings)

    def _count(self, text: str) -> int:
        """Nodes of `text` that the grammar could not place or had to invent."""
        root = Parser(grammar_of(self.language.grammar_module)).parse(text.encode()).root_node
        num, waiting = 0, [root] if root.has_error else []
        while waiting:
            node: Node = waiting.pop()
            num += node.is_error or node.is_missing
            waiting.extend(child for child in node.children if child.has_error or child.is_missing)
        return num


def _from_landmark(above: str, line_prefix: str, language: Language) -> str:
    """`above` from its last landmark on; nothing where the cursor's own line is one."""
    if language.landmark and language.landmark.match(line_prefix):
        return ""
    starts = [match.start() for match in language.landmark.finditer(above)] if language.landmark else []
    return above[starts[-1] :] if starts else above


def _to_landmark(below: str, language: Language) -> str:
    """`below` up to its second landmark: a decorator before the first one needs it."""
    second = next(islice(language.landmark.finditer(below), 1, None), None) if language.landmark else None
    if not second:
        return below
    lines = below[: second.start()].split("\n")
    while len(lines) > 1 and lines[-2].startswith("@"):
        lines = [*lines[:-2], ""]
    return "\n".join(lines)
