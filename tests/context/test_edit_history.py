"""Edits of a document are merged as a person counts them."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from dg_lsp.context.document import LineIndex
from dg_lsp.context.edit_history import MAX_CHARS, MAX_EDITS, MAX_SECONDS, Author, Edit, EditHistory

TEXT = "import os\n\ndef area(width, height):\n    return width * height\n\nprint(area(2, 3))\n"


class Buffer:
    def __init__(self, text=TEXT):
        self.text = text
        self.history = EditHistory()
        self.seconds = 0.0

    @property
    def lines(self):
        return LineIndex.of(self.text)

    def replace(self, start, end, new, author=Author.USER):
        self.history.change(self.lines, start, end, new, self.seconds, author)
        self.text = self.text[:start] + new + self.text[end:]

    def type_over(self, old, new):
        """Selects a text and types another one, a character at a time."""
        start = self.text.index(old)
        self.replace(start, start + len(old), new[:1])
        for position in range(1, len(new)):
            self.replace(start + position, start + position, new[position])

    def edits(self):
        return [(edit.old, edit.new) for edit in self.history.edits(self.lines, self.seconds)]


def test_typing_a_word_is_one_edit_with_the_lines_around_it():
    buffer = Buffer()
    buffer.type_over("width", "length")
    assert buffer.history.edits(buffer.lines, buffer.seconds) == [
        Edit(
            line=2,
            before="import os\n\n",
            old="def area(width, height):\n",
            new="def area(length, height):\n",
            after="    return width * height\n\nprint(area(2, 3))\n",
        )
    ]


def test_edits_of_one_line_are_one_edit_and_those_of_other_lines_are_their_own_newest_first():
    buffer = Buffer()
    buffer.type_over("os", "sys")
    buffer.type_over("width", "w")
    buffer.type_over("height", "h")
    assert buffer.edits() == [("def area(width, height):\n", "def area(w, h):\n"), ("import os\n", "import sys\n")]


@pytest.mark.parametrize("num_old", [0, MAX_CHARS + 1])
def test_a_reload_or_a_format_of_the_file_forgets_all_edits(num_old):
    buffer = Buffer(TEXT + "x" * MAX_CHARS)
    buffer.type_over("width", "length")
    buffer.replace(0, num_old, "y" * (MAX_CHARS + 1))
    assert buffer.edits() == []


def test_old_edits_and_all_but_the_last_ones_are_forgotten():
    buffer = Buffer("\n".join(f"x = {number};" for number in range(100)))
    for number in range(MAX_EDITS + 5):
        buffer.type_over(f"x = {3 * number};", f"y = {3 * number};")
    assert len(buffer.edits()) == MAX_EDITS
    buffer.seconds = MAX_SECONDS + 1
    assert buffer.edits() == []
    buffer.type_over("x = 99;", "z = 99;")
    assert len(buffer.edits()) == 1


def test_a_program_makes_no_edits_and_ends_those_that_it_changes():
    buffer = Buffer()
    buffer.type_over("width", "length")
    buffer.type_over("2, 3", "2,3")
    end = buffer.text.index("\n")
    buffer.replace(end, end, ", sys", Author.PROGRAM)
    start = buffer.text.index("2,3")
    buffer.replace(start + 2, start + 2, "  ", Author.PROGRAM)  # a formatter's blanks continue an edit
    assert buffer.edits() == [
        ("print(area(2, 3))\n", "print(area(2,  3))\n"),
        ("def area(width, height):\n", "def area(length, height):\n"),
    ]
    start = buffer.text.index("length")
    buffer.replace(start, start + len("length"), "size", Author.PROGRAM)
    assert buffer.edits() == [("print(area(2, 3))\n", "print(area(2,  3))\n")]


def test_lines_are_those_of_the_editor():
    buffer = Buffer("a\fb\u2028c\r\nd = 1\r\ne\r\n")
    buffer.type_over("1", "2")
    [edit] = buffer.history.edits(buffer.lines, 0.0)
    assert (edit.line, edit.before, edit.new, edit.after) == (1, "a\fb\u2028c\r\n", "d = 2\r\n", "e\r\n")


changes = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9), st.text("ab \n😀", max_size=5)), max_size=12)


@given(changes)
def test_the_old_lines_in_place_of_the_new_ones_give_the_first_text(steps):
    buffer = Buffer("one\ntwo\nthree\nfour\nfive\n")
    first = buffer.text
    for start, length, new in steps:
        size = len(buffer.text)
        buffer.replace(min(start, size), min(start + length, size), new)
    text = buffer.text
    for edit in sorted(buffer.history.edits(buffer.lines, 0.0), key=lambda edit: -edit.line):
        start = len("".join(text.splitlines(keepends=True)[: edit.line]))
        assert text.startswith(edit.new, start)
        text = text[:start] + edit.old + text[start + len(edit.new) :]
    assert text == first
