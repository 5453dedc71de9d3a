import math

import pytest

from dg_lsp.bench.typing_model import (
    Acceptance,
    AcceptedPart,
    TypingModel,
    accept,
    function_bodies,
    split_keys,
    typing_task,
)
from dg_lsp.errors import PositionError, UsageError


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("ab", ["a", "b"]),
        ("a\r\n\tb\r\n", ["a", "\r\n\t", "b", "\r\n"]),
        ("a\n\n\n  b", ["a", "\n", "\n", "\n  ", "b"]),
        ("a  b\rc", ["a", " ", " ", "b", "\r", "c"]),
        ("é😋\u2028", ["é", "😋", "\u2028"]),
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
    typing = TypingModel(in_word_ms=222, word_start_ms=222, line_start_ms=222, spread=0.5)
    delays = typing.delays(split_keys("x" * 20_000), 3)
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


def task_of(text, *lines):
    return typing_task("a.py", "python", text, *lines)


@pytest.mark.parametrize(
    ("text", "lines", "parts", "typed_lines"),
    [
        pytest.param("a = 1\nb = 2\n", (1,), ("", "a = 1\nb = 2\n", ""), (1, 3), id="a whole file"),
        pytest.param("if a:\n    b\nc\n", (2,), ("if a:\n    ", "b\nc\n", ""), (2, 4), id="from an indented line on"),
        pytest.param("a:\r\n\tb\r\n\tc\r\nd\r\n", (2, 3), ("a:\r\n\t", "b\r\n\tc", "\r\nd\r\n"), (2, 3), id="region"),
    ],
)
def test_a_task_divides_a_file_into_head_text_and_tail(text, lines, parts, typed_lines):
    task = task_of(text, *lines)
    assert ((task.head, task.text, task.tail), task.lines) == (parts, typed_lines)


@pytest.mark.parametrize(("first", "last"), [(0, 1), (2, 1), (1, 4), (5, 5)])
def test_missing_lines_are_refused(first, last):
    with pytest.raises(PositionError, match=r"a\.py has 3 lines"):
        task_of("a\nb\n", first, last)


@pytest.mark.parametrize("lines", [(2, 2), (2,), (3,)])
def test_blank_lines_are_refused(lines):
    with pytest.raises(PositionError, match="nothing to type"):
        task_of("a\n  \n", *lines)


def test_bodies_of_outermost_functions_lack_their_docstrings():
    bodies = function_bodies("a.py", "python", MODULE)
    assert [body.text for body in bodies] == [
        "width = 1\n\n        return width",
        "def inner():\n        pass\n    @inner\n    def other():\n        pass\n    await inner()",
    ]
    assert [body.lines for body in bodies] == [(7, 9), (16, 21)]
    assert all(body.head + body.text + body.tail == MODULE for body in bodies)
    assert bodies[0].head.endswith('"""The area."""\n        ')


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("x = 1\n", "no function"),
        ("def f(\n    a): return 1\n", "no function"),
        ("def f(:\n", "does not parse"),
    ],
)
def test_a_file_without_bodies_is_refused(given, message):
    with pytest.raises(UsageError, match=message):
        function_bodies("a.py", "python", given)
    with pytest.raises(UsageError, match="not a Python file"):
        function_bodies("a.js", "plaintext", given)
