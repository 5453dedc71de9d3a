"""What is typed again, and the buffer that it is typed into."""

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dg_lsp.context.document import LINE_END
from dg_lsp.errors import PositionError, UsageError

_BLANKS = re.compile(r"[ \t]*")


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of a file; `head + text + tail` is the file."""

    path: str
    language: str
    """LSP language id."""
    head: str
    """In the buffer before the first key, the indentation of the first line included."""
    text: str
    tail: str
    """After the cursor from the first key to the last."""

    @property
    def first_line(self) -> int:
        """1-based, in the file."""
        return len(LINE_END.findall(self.head)) + 1

    @property
    def last_line(self) -> int:
        """1-based, in the file; a text that ends with a line end ends on the empty line after it."""
        return self.first_line + len(LINE_END.findall(self.text))


@dataclass(frozen=True, slots=True)
class Source:
    """A whole file."""

    path: str
    language: str
    text: str

    def onwards(self, line: int) -> Passage:
        """Everything from a 1-based line on, with nothing after the cursor.

        Raises:
            PositionError: the file has no such line, or nothing to type from there on.
        """
        return self._passage(line, None)

    def region(self, first: int, last: int) -> Passage:
        """Lines `first` to `last`, 1-based, the rest of the file around them.

        Raises:
            PositionError: the file has no such lines, or they are blank.
        """
        return self._passage(first, last)

    def bodies(self) -> Iterator[Passage]:
        """The body of every function that is in no other function, its docstring left in the buffer.

        Raises:
            UsageError: no Python that parses, or without such a function.
        """
        if self.language != "python":
            raise UsageError(f"{self.path} is no Python file: name lines with --region instead")
        try:
            tree = ast.parse(self.text)
        except (SyntaxError, ValueError) as error:
            raise UsageError(f"{self.path} does not parse as Python: name lines with --region instead") from error
        lines = LINE_END.split(self.text)
        spans = sorted(_body_lines(tree, lines))
        if not spans:
            raise UsageError(f"{self.path} has no function with a body to type: leave --bodies out")
        for first, last in spans:
            yield self._passage(first, last)

    def _passage(self, first: int, last: int | None) -> Passage:
        starts = [0, *(end.end() for end in LINE_END.finditer(self.text))]
        if not 1 <= first <= (last or first) <= len(starts):
            raise PositionError(f"{self.path} has {len(starts)} lines: choose lines from 1 to {len(starts)}")
        start = starts[first - 1]
        end = len(self.text) if last is None else self._line_end(starts, last)
        blanks = _BLANKS.match(self.text, start, end)
        start = blanks.end() if blanks else start
        text = self.text[start:end]
        if not text.strip():
            where = f"from line {first} on" if last is None else f"in lines {first} to {last}"
            raise PositionError(f"{self.path} has nothing to type {where}: choose other lines")
        return Passage(self.path, self.language, self.text[:start], text, self.text[end:])

    def _line_end(self, starts: list[int], line: int) -> int:
        end = LINE_END.search(self.text, starts[line - 1])
        return end.start() if end else len(self.text)


def _body_lines(node: ast.AST, lines: Sequence[str]) -> Iterator[tuple[int, int]]:
    """First and last line of each body; one that begins on a line of its signature is left out."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _body_lines(child, lines)
            continue
        body = child.body[1:] if ast.get_docstring(child) is not None else child.body
        if body and not lines[body[0].lineno - 1][: body[0].col_offset].strip():
            yield _first_line(body[0]), body[-1].end_lineno or body[-1].lineno


def _first_line(statement: ast.stmt) -> int:
    """A decorated function or class begins with its decorators."""
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(decorator.lineno for decorator in decorators)])
