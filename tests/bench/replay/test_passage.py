import pytest

from dg_lsp.bench.replay.passage import Source
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
    return Source(path, language, text)


def parts(passage):
    return passage.head, passage.text, passage.tail


def test_from_the_top_nothing_stands_after_the_cursor():
    assert parts(source("a = 1\nb = 2\n").onwards(1)) == ("", "a = 1\nb = 2\n", "")


def test_from_a_line_on_its_indentation_is_there():
    passage = source("if a:\n    b = 2\nc\n").onwards(2)
    assert parts(passage) == ("if a:\n    ", "b = 2\nc\n", "")
    assert passage.first_line == 2


def test_a_region_is_cut_out_of_its_file():
    text = "if a:\r\n\tb = 2\r\n\tc = 3\r\nd\r\n"
    passage = source(text).region(2, 3)
    assert parts(passage) == ("if a:\r\n\t", "b = 2\r\n\tc = 3", "\r\nd\r\n")
    assert passage.head + passage.text + passage.tail == text


def test_the_last_line_may_lack_its_end():
    assert parts(source("a\nb").region(2, 2)) == ("a\n", "b", "")


@pytest.mark.parametrize(("first", "last"), [(0, 1), (2, 1), (1, 4), (5, 5)])
def test_lines_that_are_not_there(first, last):
    with pytest.raises(PositionError, match=r"a\.py has 3 lines"):
        source("a\nb\n").region(first, last)


@pytest.mark.parametrize("cut", [lambda s: s.region(2, 2), lambda s: s.onwards(2), lambda s: s.onwards(3)])
def test_blank_lines_are_nothing_to_type(cut):
    with pytest.raises(PositionError, match="nothing to type"):
        cut(source("a\n  \n"))


def test_an_empty_file_is_nothing_to_type():
    with pytest.raises(PositionError, match="nothing to type from line 1 on"):
        source("").onwards(1)


def test_bodies_are_those_of_outer_functions_without_their_docstrings():
    bodies = list(source(CODE).bodies())
    assert [body.text for body in bodies] == [
        "width = 1\n\n        return width",
        "def inner():\n        pass\n    @inner\n    def other():\n        pass\n    await inner()",
    ]
    assert [body.first_line for body in bodies] == [7, 16]
    assert all(body.head + body.text + body.tail == CODE for body in bodies)
    assert bodies[0].head.endswith('"""The area."""\n        ')


def test_a_body_that_begins_with_a_decorated_function_begins_with_the_decorator():
    (body,) = source("def f(a):\n    @a\n    def g():\n        return 1\n    return g\n").bodies()
    assert body.text.startswith("@a\n")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (source("x = 1\n"), "no function"),
        (source("def f(\n    a): return 1\n"), "no function"),
        (source("def f(:\n"), "does not parse"),
        (source("function f() {}", "a.js", "plaintext"), "no Python file"),
    ],
)
def test_a_file_without_bodies_is_refused(given, message):
    with pytest.raises(UsageError, match=message):
        list(given.bodies())
