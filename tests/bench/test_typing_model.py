import math

import pytest

from dg_lsp.bench.typing_model import Acceptance, AcceptedPart, SourceText, TypingModel, accept, split_keys
from dg_lsp.errors import PositionError, UsageError


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("ab", ["a", "b"]),
        ("a\n    b", ["a", "\n    ", "b"]),
        ("a\r\n\tb\r\n", ["a", "\r\n\t", "b", "\r\n"]),
        ("a\n\n\n  b", ["a", "\n", "\n", "\n  ", "b"]),
        ("a  b\rc", ["a", " ", " ", "b", "\r", "c"]),
        ("é😋\u2028", ["é", "😋", "\u2028"]),
        ("", []),
    ],
)
def test_a_line_end_includes_the_indentation(text, keys):
    assert list(split_keys(text)) == keys
    assert "".join(split_keys(text)) == text


def test_pauses_are_longer_before_lines_and_words():
    typing = TypingModel(in_word_ms=100, word_start_ms=200, line_start_ms=700, spread=0)
    keys = split_keys("ab = c1\n  x.y_z")
    assert typing.delays(keys, 0) == (700, 100, 100, 100, 100, 200, 100, 100, 700, 100, 200, 100, 100)


def test_delays_are_log_normal_around_their_mean():
    delays = TypingModel(in_word_ms=222, word_start_ms=222, line_start_ms=222, spread=0.5).delays(
        split_keys("x" * 20_000), 3
    )
    logs = [math.log(delay) for delay in delays]
    mean = sum(logs) / len(logs)
    assert sum(delays) / len(delays) == pytest.approx(222, rel=0.02)
    assert math.sqrt(sum((log - mean) ** 2 for log in logs) / len(logs)) == pytest.approx(0.5, rel=0.02)


@pytest.mark.parametrize(
    ("item", "coming", "text", "part", "presses"),
    [
        pytest.param("x + y", "x + y\n", "x + y", AcceptedPart.WHOLE, 1, id="all of it"),
        pytest.param("x + y\n  z", "x + y\n  w\n", "x + y", AcceptedPart.LINE, 1, id="the first line"),
        pytest.param("x + y", "x - y\n", "x", AcceptedPart.WORDS, 1, id="a word"),
        pytest.param("self.width = 3", "self.width = w\n", "self.width =", AcceptedPart.WORDS, 4, id="words and signs"),
        pytest.param(" = one\n two", " = one_more", None, None, 0, id="half a word after a sign"),
        pytest.param("(a)", "(b)", None, None, 0, id="a sign alone"),
        pytest.param("):", "):\n", "):", AcceptedPart.WHOLE, 1, id="signs that are the whole item"),
        pytest.param("grüße(é)", "grüße(ö)", "grüße(", AcceptedPart.WORDS, 2, id="letters of all alphabets"),
    ],
)
def test_a_user_accepts_the_part_that_is_right(item, coming, text, part, presses):
    assert accept(item, coming) == (None if text is None else Acceptance(text, part, presses))


MODULE = '''\
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
    assert parts(source("a = 1\nb = 2\n").task(1)) == ("", "a = 1\nb = 2\n", "")


def test_the_indentation_of_the_first_line_is_in_the_buffer():
    task = source("if a:\n    b = 2\nc\n").task(2)
    assert parts(task) == ("if a:\n    ", "b = 2\nc\n", "")
    assert task.first_line == 2


def test_a_region_has_the_file_around_it():
    text = "if a:\r\n\tb = 2\r\n\tc = 3\r\nd\r\n"
    task = source(text).task(2, 3)
    assert parts(task) == ("if a:\r\n\t", "b = 2\r\n\tc = 3", "\r\nd\r\n")
    assert task.head + task.text + task.tail == text


@pytest.mark.parametrize(("first", "last"), [(0, 1), (2, 1), (1, 4), (5, 5)])
def test_missing_lines_are_refused(first, last):
    with pytest.raises(PositionError, match=r"a\.py has 3 lines"):
        source("a\nb\n").task(first, last)


@pytest.mark.parametrize("cut", [lambda s: s.task(2, 2), lambda s: s.task(2), lambda s: s.task(3)])
def test_blank_lines_are_refused(cut):
    with pytest.raises(PositionError, match="nothing to type"):
        cut(source("a\n  \n"))
    with pytest.raises(PositionError, match="nothing to type from line 1 on"):
        source("").task(1)


def test_bodies_of_outermost_functions_lack_their_docstrings():
    bodies = list(source(MODULE).bodies())
    assert [body.text for body in bodies] == [
        "width = 1\n\n        return width",
        "def inner():\n        pass\n    @inner\n    def other():\n        pass\n    await inner()",
    ]
    assert [body.first_line for body in bodies] == [7, 16]
    assert all(body.head + body.text + body.tail == MODULE for body in bodies)
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
