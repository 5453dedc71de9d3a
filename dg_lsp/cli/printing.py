"""Printing of lines that may contain text of files, folders, models and servers, which must not control a terminal."""

import typer

from dg_lsp.errors import escaped


def print_line(line: object, *, err: bool = False) -> None:
    """Prints one line on standard output or standard error, with control characters and line ends as escapes."""
    typer.echo(escaped(str(line)), err=err)


def print_lines(text: str, *, err: bool = False) -> None:
    """Prints a text of several lines, such as a table, in the same way."""
    for line in text.split("\n"):
        print_line(line, err=err)
