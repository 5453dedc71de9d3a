"""Models of a user, who types and accepts items, and of an editor, which sends requests.

Times between keys are log-normal, which fits measured ones well (González, Calot, Ierache and Hasperué, "On the shape
of timings distributions in free-text keystroke dynamics profiles", Heliyon 7, 2021). The mean within a line is that of
Dhakal, Feit, Kristensson and Oulasvirta, "Observations on Typing from 136 Million Keystrokes", CHI 2018: 239 ms over
168,000 people. Pauses before words and lines are longer in all studies; their length for code, and the spread, are
assumptions of this module and are printed with the results.
"""

import ast
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from dg_lsp.context.document import LINE_END, is_word
from dg_lsp.engine.ttfue import AcceptedPart
from dg_lsp.errors import PositionError, UsageError

_KEY = re.compile(r"(?:\r\n|\r|\n)[ \t]*|.", re.DOTALL)
_WORD = re.compile(r"[^\S\r\n]*(?:\w+|[^\w\s]+)")
"""Text that "accept next word" inserts: a word or a run of signs, with the blanks before it."""


@dataclass(frozen=True, slots=True)
class TypingModel:
    """Milliseconds before a key: log-normal, with a mean that depends on the position of the key."""

    in_word_ms: float = 222.0
    """Also before blanks and punctuation. With every sixth key at the start of a word, the mean is 239 ms."""
    word_start_ms: float = 325.0
    line_start_ms: float = 1500.0
    spread: float = 0.5  # standard deviation of the logarithm
    speed: float = 1.0  # divides all times between keys
    reaction_ms: float = 380.0
    """Time to accept a shown item: 100 ms to see, three times 70 to decide and 70 to press (Card, Moran and Newell,
    "The Psychology of Human-Computer Interaction", 1983, matching a known name)."""

    def delays(self, keys: Sequence[str], seed: int) -> tuple[float, ...]:
        """Milliseconds before each key, the same for the same keys and seed."""
        name = zlib.crc32("".join(keys).encode("utf-8", "surrogatepass"))
        normal = np.random.default_rng((seed, name)).standard_normal(len(keys))
        # the mean of a log-normal distribution is above its median
        factors = np.exp(self.spread * normal - self.spread**2 / 2) / self.speed
        previous = ("\n", *keys)
        return tuple(
            float(self._mean(before, key) * factor)
            for before, key, factor in zip(previous, keys, factors, strict=False)
        )

    def _mean(self, before: str, key: str) -> float:
        if before[0] in "\r\n":
            return self.line_start_ms
        return self.word_start_ms if is_word(key) and not is_word(before) else self.in_word_ms


class MatchingKey(StrEnum):
    """Reaction of an editor to a key that matches the shown item.

    The item stays and the key sends a request, as in VS Code; the item stays without a request, as in llama.vim; or the
    item disappears until the next answer, as in Neovim 0.12.
    """

    REQUEST = "request"
    KEEP = "keep"
    DISMISS = "dismiss"


@dataclass(frozen=True, slots=True)
class EditorModel:
    """When an editor sends a request after a key: VS Code waits at least 50 ms, Neovim 0.12 200, llama.vim 0."""

    debounce_ms: float = 50.0
    on_matching_key: MatchingKey = MatchingKey.REQUEST


def split_keys(text: str) -> tuple[str, ...]:
    """Text of each key press: a character, or a line end with the next indentation, which editors insert."""
    return tuple(_KEY.findall(text))


@dataclass(frozen=True, slots=True)
class Acceptance:
    """The beginning of an item that a user accepts, with one key press for all of it or its first line, or per word."""

    text: str
    part: AcceptedPart
    presses: int


def accept(item: str, coming: str) -> Acceptance | None:
    """The part of an item that a user accepts before typing `coming`: all, the first line, or the right words."""
    if _is_right(item, coming):
        return Acceptance(item, AcceptedPart.WHOLE, 1)
    line = LINE_END.split(item, maxsplit=1)[0]
    if line != item and _is_right(line, coming):
        return Acceptance(line, AcceptedPart.LINE, 1)
    text, presses = "", 0
    for word in _WORD.findall(line):
        if not _is_right(text + word, coming):
            break
        text, presses = text + word, presses + 1
    return Acceptance(text, AcceptedPart.WORDS, presses) if any(map(is_word, text)) else None


def _is_right(text: str, coming: str) -> bool:
    """True if `coming` starts with `text`, which does not end inside a word."""
    cuts_word = is_word(text[-1:]) and is_word(coming[len(text) : len(text) + 1])
    return bool(text.strip()) and coming.startswith(text) and not cuts_word


class Selection(StrEnum):
    """The typed part of a file: everything from a line on, some lines, or the body of each function."""

    ONWARDS = "onwards"
    REGION = "region"
    BODIES = "bodies"


@dataclass(frozen=True, slots=True)
class TypingTask:
    """A part of a file; `head + text + tail` is the file. The tail is after the cursor all the time."""

    path: str
    language: str
    head: str  # in the buffer before the first key, including the indentation of the first line
    text: str
    tail: str
    lines: tuple[int, int] = (1, 1)
    """First and last line in the file, 1-based; after a final line end the last one is the empty line below."""


def typing_task(path: str, language: str, file: str, first: int, last: int | None = None) -> TypingTask:
    """Lines `first` to `last` of the text `file`, 1-based; without `last` everything from the first line on.

    Raises:
        PositionError: the file has no such lines, or they are blank.
    """
    starts = [0, *(end.end() for end in LINE_END.finditer(file))]
    if not 1 <= first <= (last or first) <= len(starts):
        raise PositionError(f"{path} has {len(starts)} lines: choose lines from 1 to {len(starts)}")
    line_end = LINE_END.search(file, starts[last - 1]) if last else None
    end = line_end.start() if line_end else len(file)
    text = file[starts[first - 1] : end].lstrip(" \t")
    start = end - len(text)
    if not text.strip():
        where = f"from line {first} on" if last is None else f"in lines {first} to {last}"
        raise PositionError(f"{path} has nothing to type {where}: choose other lines")
    return TypingTask(path, language, file[:start], text, file[end:], (first, last or len(starts)))


def function_bodies(path: str, language: str, file: str) -> list[TypingTask]:
    """The body of every outermost function of a Python file, without its docstring.

    Raises:
        UsageError: the file is not valid Python, or has no such function.
    """
    if language != "python":
        raise UsageError(f"{path} is not a Python file: name lines with --region instead")
    try:
        tree = ast.parse(file)
    except (SyntaxError, ValueError) as error:
        raise UsageError(f"{path} does not parse as Python: name lines with --region instead") from error
    spans = sorted(_body_lines(tree, LINE_END.split(file)))
    if not spans:
        raise UsageError(f"{path} has no function with a body to type: leave --bodies out")
    return [typing_task(path, language, file, *span) for span in spans]


def _body_lines(node: ast.AST, lines: Sequence[str]) -> Iterator[tuple[int, int]]:
    """First and last line of each body, without bodies that start on the line of their signature."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _body_lines(child, lines)
            continue
        body = child.body[1:] if ast.get_docstring(child) is not None else child.body
        if body and not lines[body[0].lineno - 1][: body[0].col_offset].strip():
            decorators: list[ast.expr] = getattr(body[0], "decorator_list", [])
            first = min([body[0].lineno, *(decorator.lineno for decorator in decorators)])
            yield first, body[-1].end_lineno or body[-1].lineno
