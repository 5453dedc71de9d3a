"""What a grammar finds in a text: errors, and blocks of whole lines.

Every syntax tree of dg-lsp comes from `LimitedParser`.
"""

import math
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property

from tree_sitter import Language as Grammar
from tree_sitter import Node, Parser, Point, Tree

from dg_lsp.context.document import num_shared
from dg_lsp.context.languages import grammar_of, language_of

MAX_CHARS = 400_000  # longer texts are not parsed at every key
MAX_SECONDS, SECONDS_PER_BYTE = 1.0, 5e-6
"""Processor time of all parses of a text and its variants. Real files took at most a third of it, most a tenth."""
_OPERATIONS, _USUAL_RATE, _MAX_EXCESS = 100, 3.0, 3000.0
"""Operations of tree-sitter between two calls of its progress callback; per byte in code (0.4 to 2.2, in minified code
too); and how many more the parser may do: recovery from errors that takes quadratic time does 5 to 6 for each byte."""
_SIZES = (1, 2, 3, *(2**power for power in range(2, 13)))
"""Bytes that the parser reads at a time: all that are left, or at least 4, so that no character is cut."""
_FREE: list[dict[int, bytearray]] = []
"""Chunks of these sizes that no parse uses. tree-sitter never frees what it has read through a function, in 0.25 and
0.26: it gets the same objects again and again."""
_CLOSERS = (")", "]", "}", "end", "{")
"""What closes a block begins its line."""
_TOKEN = re.compile(rb"\s*\S+\s")  # one, or several


class LimitedParser:
    """A parser for one text and its variants, which together take a limited time.

    tree-sitter's recovery from errors can take quadratic time: minutes for 40 kB of `a=>` in Java. Other threads wait
    meanwhile, and the longest parts of it cannot be stopped. Such a recovery does many operations for few bytes before
    it takes long, and is stopped by their number.
    """

    def __init__(self, grammar: Grammar, seconds: float = MAX_SECONDS) -> None:
        """The text and its variants have `seconds` together."""
        self._parser = Parser(grammar)
        self._seconds = seconds
        self._used = 0.0
        """Seconds so far."""
        self._last: tuple[bytes, Tree] | None = None
        """The last text of `root`, and its tree."""

    def root(self, text: str) -> Node | None:
        """The root of the syntax tree; None if this text or one before took too long. A lone surrogate becomes `?`.

        `Node.text` must not be read: its memory would never be freed.
        """
        data = text.encode("utf-8", "replace")
        tree = self._tree(data)
        self._last = None if tree is None else (data, tree)
        return None if tree is None else tree.root_node

    def has_error(self, text: str) -> bool:
        """True if the text has an error; False too if this text or one before took too long.

        What the text has in common with the last one of `root` is taken from there. Errors elsewhere may become other
        errors by that, but valid code remains valid.
        """
        data, tree = text.encode("utf-8", "replace"), None
        if self._last:
            old, tree = self._last
            num_common = num_shared(old, data)
            # a parser finds an error at the token behind it at the latest: no other text behind that mends it
            end = min((node.end_byte for node in errors_in(tree.root_node)), default=len(old))
            if (token := _TOKEN.match(old, end)) and token.end() <= num_common:
                return True
            tree = _edited(old, tree, data, num_common)
        tree = self._tree(data, tree)
        return tree is not None and tree.root_node.has_error

    def _tree(self, data: bytes, old: Tree | None = None) -> Tree | None:
        """The tree of `data`, from an old tree that was edited; None if it takes too many operations or seconds."""
        try:
            chunks = _FREE.pop()
        except IndexError:
            chunks = {size: bytearray(size) for size in _SIZES}
        is_parsed = False
        num_operations = 0
        excess = 0.0
        reached = 0
        began = time.thread_time() - self._used
        end = began + self._seconds + SECONDS_PER_BYTE * len(data)

        def read(at: int, _place: Point | None) -> bytes | bytearray:
            left = len(data) - at
            if left <= 0 or is_parsed:  # by then another parse has the chunks
                return data[at:]
            chunk = chunks[left if left < 4 else min(1 << (left.bit_length() - 1), _SIZES[-1])]
            chunk[:] = data[at : at + len(chunk)]
            return chunk

        def is_over(at: int, _has_error: bool) -> bool:
            nonlocal num_operations, excess, reached
            num_operations += _OPERATIONS
            if at > reached:  # those at the end of a text balance its tree
                excess = max(0.0, excess + num_operations - _USUAL_RATE * (at - reached))
                num_operations = 0
                reached = at
            return excess > _MAX_EXCESS or time.thread_time() > end

        tree = None
        if time.thread_time() < end:
            with suppress(ValueError):  # it is stopped
                if old is None:
                    tree = self._parser.parse(read, progress_callback=is_over)
                else:
                    tree = self._parser.parse(read, old, progress_callback=is_over)
        is_parsed = True
        _FREE.append(chunks)
        self._used = math.inf if tree is None else time.thread_time() - began
        return tree


class SyntaxCheck:
    """Syntax errors of a text, which is parsed once, and of its variants. Without a grammar there are none."""

    def __init__(self, text: str, language_id: str) -> None:
        grammar = grammar_of(language_of(language_id).grammar)
        self._parser = LimitedParser(grammar) if grammar else None
        self._text = text

    @cached_property
    def has_error(self) -> bool:
        """Whether the text has an error: the user is in the middle of a change."""
        root = self._parser.root(self._text) if self._parser else None
        return root is not None and root.has_error

    def has_error_in(self, variant: str) -> bool:
        """Whether a variant of the text has an error."""
        return self._parser is not None and self._parser.has_error(variant)

    def is_broken_by(self, start: int, end: int, new: str) -> bool:
        """Whether valid code gets an error by `new` in place of `[start, end)`.

        Only the code around the change is parsed, because a whole file takes too long after every edit: first a line,
        then one block more at a time. What is valid without the change in its outermost block, and not with it, is
        broken; the whole text counts where that block has an error without it.
        """
        is_valid = False
        for before, after in _surroundings(self._text, start, end):
            is_valid = not self.has_error_in(before + self._text[start:end] + after)
            if is_valid and not self.has_error_in(before + new + after):
                return False
        return is_valid or (not self.has_error and self.has_error_in(self._text[:start] + new + self._text[end:]))


def _surroundings(text: str, start: int, end: int) -> Iterator[tuple[str, str]]:
    """The texts before and after a range in the code around it, which grows by one block at a time.

    First its own lines and the deeper ones below, then also the next less deep line above and the lines that close its
    block, without the rest of the block.
    """
    above, below = text[:start].split("\n"), text[end:].split("\n")
    before, after = above.pop(), below.pop(0)
    first = before + text[start:end] + after
    depth = _depth(first)
    line = 0
    while True:
        while above and _continues(first, depth):
            first = above.pop()
            before = f"{first}\n{before}"
        closing = line
        while line < len(below) and _continues(below[line], depth):
            line += 1
        after = "\n".join([after, *below[closing:line]])
        yield before.lstrip(), after
        while above and _depth(above[-1]) >= depth:
            above.pop()
        if not above:
            return
        first = above.pop()
        before = f"{first}\n{before}"
        depth = _depth(first)
        while line < len(below) and _depth(below[line]) > depth:
            line += 1


def _continues(line: str, depth: float) -> bool:
    """Whether a line is not the first one of a block with this number of blanks."""
    return _depth(line) > depth or (_depth(line) == depth and line.lstrip().startswith(_CLOSERS))


def _depth(line: str) -> float:
    """The number of blanks before the code of a line, more if it continues the line above; infinite without code."""
    code = line.lstrip()
    return len(line) - len(code) + 0.5 * code.startswith(".") if code else math.inf


def _edited(old: bytes, tree: Tree, new: bytes, start: int) -> Tree:
    """A copy of the tree of `old`, whose nodes are where they are in `new`; the texts differ from `start` on."""
    num_behind = num_shared(old[start:][::-1], new[start:][::-1])
    places = []
    for data, at in ((old, start), (old, len(old) - num_behind), (new, len(new) - num_behind)):
        places.append((at, Point(data.count(b"\n", 0, at), at - 1 - data.rfind(b"\n", 0, at))))
    (_, first), (old_end, old_place), (new_end, new_place) = places
    tree = tree.copy()
    tree.edit(start, old_end, new_end, first, old_place, new_place)
    return tree


def errors_in(root: Node) -> Iterator[Node]:
    """The nodes of errors, and those that the parser missed."""
    waiting = [root] if root.has_error else []
    while waiting:
        node = waiting.pop()
        if node.is_error or node.is_missing:
            yield node
        waiting.extend(child for child in node.children if child.has_error or child.is_missing)


def whole_line_nodes(text: str, language_id: str, max_lines: int) -> Iterator[tuple[int, int]]:
    """First and last line of each node that fills 2 to `max_lines` whole lines, without comments and errors."""
    grammar = grammar_of(language_of(language_id).grammar)
    root = None if grammar is None else LimitedParser(grammar).root(text)
    if root is None:
        return
    lines = text.encode().split(b"\n")
    waiting = [root]
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
