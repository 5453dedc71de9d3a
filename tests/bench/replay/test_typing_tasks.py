import pytest

from dg_lsp.bench.replay.typing_tasks import SourceText
from dg_lsp.errors import PositionError, UsageError

CODE = '''\
import os


class Shape:
    def area(self):
        """The area."""
        width = 1

        return width

    @property
    def name(self): return "shape"


async def main():
    def inner():
        pass
    @inner
    def other():
        pass
    await inner()


def documented():
    """Nothing else."""
'''


def source(text, path="a.py", language="python"):
    return SourceText(path, language, text)


def parts(task):
    return task.head, task.text, task.tail


def test_a_whole_file_has_nothing_after_the_cursor():
    assert parts(source("a = 1\nb = 2\n").onwards(1)) == ("", "a = 1\nb = 2\n", "")


def test_the_indentation_of_the_first_line_is_in_the_buffer():
    task = source("if a:\n    b = 2\nc\n").onwards(2)
    assert parts(task) == ("if a:\n    ", "b = 2\nc\n", "")
    assert task.first_line == 2


def test_a_region_has_the_file_around_it():
    text = "if a:\r\n\tb = 2\r\n\tc = 3\r\nd\r\n"
    task = source(text).region(2, 3)
    assert parts(task) == ("if a:\r\n\t", "b = 2\r\n\tc = 3", "\r\nd\r\n")
    assert task.head + task.text + task.tail == text


@pytest.mark.parametrize(("first", "last"), [(0, 1), (2, 1), (1, 4), (5, 5)])
def test_missing_lines_are_refused(first, last):
    with pytest.raises(PositionError, match=r"a\.py has 3 lines"):
        source("a\nb\n").region(first, last)


@pytest.mark.parametrize("cut", [lambda s: s.region(2, 2), lambda s: s.onwards(2), lambda s: s.onwards(3)])
def test_blank_lines_are_refused(cut):
    with pytest.raises(PositionError, match="nothing to type"):
        cut(source("a\n  \n"))
    with pytest.raises(PositionError, match="nothing to type from line 1 on"):
        source("").onwards(1)


def test_bodies_of_outermost_functions_lack_their_docstrings():
    bodies = list(source(CODE).bodies())
    assert [body.text for body in bodies] == [
        "width = 1\n\n        return width",
        "def inner():\n        pass\n    @inner\n    def other():\n        pass\n    await inner()",
    ]
    assert [body.first_line for body in bodies] == [7, 16]
    assert all(body.head + body.text + body.tail == CODE for body in bodies)
    assert bodies[0].head.endswith('"""The area."""\n        ')


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (source("x = 1\n"), "no function"),
        (source("def f(\n    a): return 1\n"), "no function"),
        (source("def f(:\n"), "does not parse"),
        (source("function f() {}", "a.js", "plaintext"), "not a Python file"),
    ],
)
def test_a_file_without_bodies_is_refused(given, message):
    with pytest.raises(UsageError, match=message):
        list(given.bodies())
