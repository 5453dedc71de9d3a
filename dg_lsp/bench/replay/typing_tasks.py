"""Typing tasks: a part of a file, and the text around it."""

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from dg_lsp.context.document import LINE_END
from dg_lsp.errors import PositionError, UsageError

_BLANKS = re.compile(r"[ \t]*")


class Selection(StrEnum):
    """Which part of a file is typed."""

    ONWARDS = "onwards"
    """Everything from a line on; nothing is after the cursor."""
    REGION = "region"
    """Some lines inside the file."""
    BODIES = "bodies"
    """The body of each function, one after the other, inside the file."""


@dataclass(frozen=True, slots=True)
class TypingTask:
    """A part of a file; `head + text + tail` is the file."""

    path: str
    language: str
    """LSP language id."""
    head: str
    """In the buffer before the first key, including the indentation of the first line."""
    text: str
    tail: str
    """After the cursor all the time."""

    @property
    def first_line(self) -> int:
        """1-based line in the file."""
        return len(LINE_END.findall(self.head)) + 1

    @property
    def last_line(self) -> int:
        """1-based line in the file; after a final line end the empty line below."""
        return self.first_line + len(LINE_END.findall(self.text))


@dataclass(frozen=True, slots=True)
class SourceText:
    """A whole file."""

    path: str
    language: str
    text: str

    def onwards(self, line: int) -> TypingTask:
        """Everything from a 1-based line on.

        Raises:
            PositionError: the file has no such line, or only blanks after it.
        """
        return self._task(line, None)

    def region(self, first: int, last: int) -> TypingTask:
        """Lines `first` to `last`, 1-based.

        Raises:
            PositionError: the file has no such lines, or they are blank.
        """
        return self._task(first, last)

    def bodies(self) -> Iterator[TypingTask]:
        """The body of every outermost function, without its docstring.

        Raises:
            UsageError: the file is not valid Python, or has no such function.
        """
        if self.language != "python":
            raise UsageError(f"{self.path} is not a Python file: name lines with --region instead")
        try:
            tree = ast.parse(self.text)
        except (SyntaxError, ValueError) as error:
            raise UsageError(f"{self.path} does not parse as Python: name lines with --region instead") from error
        spans = sorted(_body_lines(tree, LINE_END.split(self.text)))
        if not spans:
            raise UsageError(f"{self.path} has no function with a body to type: leave --bodies out")
        for first, last in spans:
            yield self._task(first, last)

    def _task(self, first: int, last: int | None) -> TypingTask:
        starts = [0, *(end.end() for end in LINE_END.finditer(self.text))]
        if not 1 <= first <= (last or first) <= len(starts):
            raise PositionError(f"{self.path} has {len(starts)} lines: choose lines from 1 to {len(starts)}")
        line_end = LINE_END.search(self.text, starts[last - 1]) if last else None
        end = line_end.start() if line_end else len(self.text)
        blanks = _BLANKS.match(self.text, starts[first - 1], end)
        start = blanks.end() if blanks else starts[first - 1]
        text = self.text[start:end]
        if not text.strip():
            where = f"from line {first} on" if last is None else f"in lines {first} to {last}"
            raise PositionError(f"{self.path} has nothing to type {where}: choose other lines")
        return TypingTask(self.path, self.language, self.text[:start], text, self.text[end:])


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
