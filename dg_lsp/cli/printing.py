"""What commands print: lines, tables, facts, JSON, and notes and warnings with their next step.

Lines may contain text of files, folders, models and servers, which must not control a terminal.
"""

import json
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence

import typer

from dg_lsp.errors import escaped


def print_line(line: object, *, err: bool = False) -> None:
    """Prints one line on standard output or standard error, with control characters and line ends as escapes."""
    typer.echo(escaped(str(line)), err=err)


def print_lines(lines: str | Iterable[object], *, err: bool = False) -> None:
    """Prints lines, or a text of several lines, in the same way."""
    for line in lines.split("\n") if isinstance(lines, str) else lines:
        print_line(line, err=err)


def note(sentence: object) -> None:
    """Prints a sentence about the command itself on standard error."""
    print_line(f"dg-lsp: {sentence}", err=True)


def warn(sentence: object) -> None:
    """Prints a problem with its remedy on standard error; the command goes on."""
    note(f"warning: {sentence}")


def print_json(tree: object) -> None:
    """Prints one JSON object on one line, in ASCII."""
    typer.echo(json.dumps(tree))


def print_facts(pairs: Iterable[tuple[str, object]]) -> None:
    """Prints names and JSON values in two columns; a name that ends with `_bytes` has a size."""
    rows = []
    for name, value in pairs:
        text = size_text(value) if name.endswith("_bytes") and isinstance(value, int) else _value_text(value)
        rows.append((name.removesuffix("_bytes").replace("_", " "), text))
    print_lines(aligned(rows))


def _value_text(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {inner}" for name, inner in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


def size_text(num_bytes: float) -> str:
    """A size of files or memory, in MB below 1 GB."""
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.0f} MB"


def plural(num: int, noun: str) -> str:
    """`1 step`, `2 steps`."""
    return f"{num} {noun}{'s' * (num != 1)}"


def print_table(rows: Sequence[Sequence[str]], spare: Sequence[str] = ()) -> list[str]:
    """Prints rows with aligned columns; the first one names the columns. Returns the names that are left out.

    On a terminal without room for all, spare columns are left out, the first one named first, and lines are cut.
    """
    table, left_out = [list(row) for row in rows], list(spare)
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    while left_out[:1] and max(map(len, aligned(table))) > width:
        column = table[0].index(left_out.pop(0))
        table = [row[:column] + row[column + 1 :] for row in table]
    print_lines(line if len(line) <= width else f"{line[: width - 1]}…" for line in aligned(table))
    return [name for name in rows[0] if name not in table[0]]


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Rows of a table as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()


def agrees(question: str, *, by_default: bool) -> bool:
    """The user's answer to a question on standard error; Ctrl-D is no."""
    typer.echo(f"{question} [{'Y/n' if by_default else 'y/N'}] ", nl=False, err=True)
    answer = sys.stdin.readline().lower()
    return answer.strip() in ("y", "yes") or (by_default and answer.strip() == "" != answer)
