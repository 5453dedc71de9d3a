"""What a grammar finds in a text: errors, and blocks of whole lines.

Every syntax tree of dg-lsp comes from `LimitedParser`.
"""

import math
import re
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from itertools import islice

from tree_sitter import Language as Grammar
from tree_sitter import Node, Parser, Point, Tree

from dg_lsp.context.document import num_shared
from dg_lsp.context.languages import grammar_of, language_of

MAX_CHARS = 400_000  # longer texts are not parsed at every key
MAX_SECONDS, SECONDS_PER_BYTE = 1.0, 5e-6
"""Processor time of all parses of a text and its variants. Real files took at most a third of it, most a tenth."""
MAX_AT_ONCE = 7000
"""Most bytes that a parse adds to the one before."""
_STEP, _NUM_STEPS = 3000, 100
"""Bytes that a parse of the beginning of a text grows by, and most such parses of one text."""
_OPERATIONS, _USUAL_RATE, _MAX_EXCESS = 100, 1.5, 3000.0
"""Operations of tree-sitter between two calls of its progress callback; per byte in usual code (0.4 to 0.9); and how
many more the parser may do: broken files of 16 languages reach 2300, minified code and `%w(` in Rust pass it."""
_MAX_TRIED = 4 * _STEP
"""Longest text, in bytes, of which beginnings are tried because it takes many operations."""
_TEXTS = ((b"/*", b"*/"), (b'"""', b'"""'), (b"'''", b"'''"), (b"`", b"`"))
"""Ends of comments and strings that may contain many lines; in some languages they mean something else."""
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
    meanwhile, and the last part of it cannot be stopped. Therefore longer and longer beginnings of a text are parsed,
    each with the tree of the last one, so that a text that would take too long shows it in time. No parse adds more
    than `MAX_AT_ONCE` bytes that it cannot be stopped in.
    """

    def __init__(self, grammar: Grammar, max_errors: int = sys.maxsize, seconds: float | None = None) -> None:
        """A text whose beginning has more than `max_errors` errors takes too long; all have `seconds` together."""
        self._grammar = grammar
        self._parser = Parser(grammar)
        self._seconds = MAX_SECONDS if seconds is None else seconds
        self._max_errors = max_errors
        self._used = 0.0
        """Seconds so far."""
        self._num_tried = _STEP
        """Length of the longest text that was not too much, in bytes."""
        self._last: tuple[bytes, Tree] | None = None
        """The last text of `root`, and its tree."""

    def root(self, text: str) -> Node | None:
        """The root of the syntax tree; None if this text or one before took too long. A lone surrogate becomes `?`.

        `Node.text` must not be read: its memory would never be freed.
        """
        data = text.encode("utf-8", "replace")
        tree = self._limited(data)
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
        tree = self._limited(data, tree)
        return tree is not None and tree.root_node.has_error

    def _limited(self, data: bytes, old: Tree | None = None) -> Tree | None:
        """The tree of `data`, from an old tree that was edited; None where the time is over."""
        began, tree = time.thread_time() - self._used, None
        end = began + self._seconds + SECONDS_PER_BYTE * len(data)
        try:
            is_long = len(data) > 2 * _STEP
            tree = self._tree_by_beginnings(data, end) if is_long else self._tree(data, len(data), end, old)
            self._num_tried = max(self._num_tried, len(data))
            self._used = time.thread_time() - began
        except _TooLongError:
            self._used = math.inf
        return tree

    def _tree_by_beginnings(self, data: bytes, end: float) -> Tree | None:
        """Parses longer and longer beginnings. Raises as `_tree` does, also if the next one would probably do so."""
        max_errors = self._max_errors if len(data) > self._num_tried + _STEP else sys.maxsize  # else it is a variant
        size, place, tree, longest_step = 0, Point(0, 0), None, max(_STEP, len(data) // _NUM_STEPS)
        while size < len(data):
            step = min(max(_STEP, size // 10), longest_step, len(data) - size)
            step = _end_outside_text(data, size, size + step) - size
            began = time.thread_time()
            added = data[size : size + step]
            num_lines = added.count(b"\n")
            column = step - 1 - added.rfind(b"\n") if num_lines else place.column + step
            new_place = Point(place.row + num_lines, column)
            if tree is not None:
                tree.edit(size, size, size + step, place, place, new_place)
            size, place = size + step, new_place
            tree = self._tree(data, size, end, tree)
            ended = time.thread_time()
            if size == len(data):
                break
            too_many = islice(errors_in(tree.root_node), max_errors, None)
            if (ended - began) * ((size + step) / size) ** 2 > end - ended or any(too_many):
                raise _TooLongError
        return tree

    def _tree(self, data: bytes, size: int, end: float, old: Tree | None = None) -> Tree:
        """The tree of the first `size` bytes. Raises `_TooLongError` at the processor time `end` of this thread."""

        chunks = _free_chunks()
        is_parsed = False
        excess = 0.0
        most = _MAX_EXCESS
        reached = 0

        def read(at: int, _place: Point | None) -> bytes | bytearray:
            left = size - at
            if left <= 0 or is_parsed:  # by then another parse has the chunks
                return data[at:size]
            chunk = chunks[left if left < 4 else min(1 << (left.bit_length() - 1), _SIZES[-1])]
            chunk[:] = data[at : at + len(chunk)]
            return chunk

        def is_over(at: int = 0, _has_error: bool = False) -> bool:
            nonlocal excess, most, reached
            if 0 < at < size <= _MAX_TRIED:
                excess = max(0.0, excess + _OPERATIONS - _USUAL_RATE * max(0, at - reached))
                reached = max(reached, at)
                if excess > most:
                    most *= 2  # a usual text is tried two or three times
                    return self._is_slow(data, at, size, end)
            return time.thread_time() > end

        tree = None
        if not is_over():
            with suppress(ValueError):  # it is stopped
                if old is None:
                    tree = self._parser.parse(read, progress_callback=is_over)
                else:
                    tree = self._parser.parse(read, old, progress_callback=is_over)
        is_parsed = True
        _FREE.append(chunks)
        if tree is None or is_over():
            raise _TooLongError
        return tree

    def _is_slow(self, data: bytes, length: int, size: int, end: float) -> bool:
        """True if beginnings, from `length` bytes on, show that `size` bytes probably take longer than until `end`."""
        while True:
            began, following = time.thread_time(), min(2 * length, size)
            Parser(self._grammar).parse(data[:length])
            ended = time.thread_time()
            if (ended - began) * (size / length) ** 2 <= end - ended:
                return False
            if (ended - began) * (following / length) ** 2 > end - ended:
                return True
            length = following


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


def _free_chunks() -> dict[int, bytearray]:
    try:
        return _FREE.pop()
    except IndexError:
        return {size: bytearray(size) for size in _SIZES}


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


def _end_outside_text(data: bytes, start: int, end: int) -> int:
    """The end of a beginning that grows from `start` to about `end`: not inside of a comment or a long string.

    What such a text contains is no code, and takes long where its end is missing.
    """
    for opener, closer in _TEXTS:
        opening, closing = data.rfind(opener, start, end), data.rfind(closer, start, end)
        if opening > closing or (opener == closer and data.count(opener, 0, end) % 2):
            at = data.find(closer, end, start + MAX_AT_ONCE)
            return at + len(closer) if at >= 0 else opening if opening > start else end
    return end


class _TooLongError(Exception):
    """The limit of time was reached."""


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
