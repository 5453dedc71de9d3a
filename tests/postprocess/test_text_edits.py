from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dg_lsp.context.document import Cursor
from dg_lsp.context.languages import language_of
from dg_lsp.postprocess.brackets import balance
from dg_lsp.postprocess.text_edits import (
    Change,
    align,
    all_applied,
    gap_end,
    minimal_changes,
    to_text,
    without_surroundings,
)

PYTHON = language_of("python")
TEXTS = st.text(st.sampled_from("ab \t\r\n(é😋"), max_size=40)


@pytest.mark.parametrize(
    ("fill", "text"),
    [
        pytest.param("é😋 日本".encode(), "é😋 日本", id="any script, emoji"),
        pytest.param("👩\u200d💻".encode(), "👩\u200d💻", id="an emoji of several characters"),
        pytest.param(b"a\r\nb\rc\n", "a\nb\nc\n", id="all line ends become LF"),
        pytest.param("x😋".encode()[:-1], "x", id="a character cut by the end is dropped"),
        pytest.param("😋x".encode()[1:], None, id="a character cut at the start"),
        pytest.param(b"a\xffb", None, id="a byte that is not UTF-8"),
        pytest.param(b"\xed\xa0\xbdx", None, id="half a surrogate pair"),
        pytest.param(b"a\0b", None, id="NUL"),
        pytest.param(b"a\x1b[0m", None, id="escape"),
        pytest.param("a\x85b".encode(), None, id="next line, a control character of Unicode"),
        pytest.param("a\u2028b".encode(), None, id="a line separator"),
        pytest.param("a\ufffdb".encode(), None, id="the replacement character"),
        pytest.param("\ufeffa".encode(), None, id="a byte order mark"),
        pytest.param("a\u202eb".encode(), None, id="right-to-left override"),
    ],
)
def test_bytes_of_the_model_become_text_or_nothing(fill, text):
    assert to_text(fill) == text


@pytest.mark.parametrize(
    ("above", "prefix", "fill", "aligned"),
    [
        pytest.param("def f():", "    ", "    return 1", "return 1", id="the fill repeats the indentation"),
        pytest.param("def f():", "", "    return 1", "    return 1", id="the fill contains the indentation"),
        pytest.param("    if x:", "    ", "    return 1", "    return 1", id="one level deeper than typed"),
        pytest.param("    if x:", "    ", "        return 1", "    return 1", id="repeated, one deeper"),
        pytest.param("    x = 1", "    ", "  y = 2", "y = 2", id="deeper than the line above allows"),
        pytest.param("    f(", "        ", "        a,", "a,", id="in a bracket, the indentation repeated"),
        pytest.param("    f(", "    ", "        a,", "        a,", id="in a bracket, two levels deeper"),
        pytest.param("  f({", "    ", "    a,", "a,", id="repeated, where a level has two columns"),
        pytest.param("def f():", "    ", "for x in y:\n        x\n    z", None, id="full indentation below"),
        pytest.param("def f():", "    ", "if x:\n    y\nz", "if x:\n        y\n    z", id="from the margin"),
        pytest.param("    if x:", "    ", "    if y:\n        z", "    if y:\n            z", id="below what is typed"),
        pytest.param("class A(", "        ", "B):\n    x = 1", None, id="the end of a header that begins above"),
        pytest.param("def f():", "    ", "# as in:\n    x = 1", None, id="a comment opens no block"),
    ],
)
def test_a_fill_is_indented_like_its_line(above, prefix, fill, aligned):
    assert align(fill, Cursor(prefix, "", (above,)), PYTHON) == (fill if aligned is None else aligned)


@pytest.mark.parametrize(
    ("language", "text", "closers", "quote"),
    [
        ("javascript", "f(`a ( ${b}\n`, [", "])", ""),
        ("javascript", "f( /* ) it's */ {", "})", ""),
        ("rust", "fn f<'a>(x: &'a str) { let c = '{'; let d = '\\''; (", ")}", ""),
        ("c", "if (c == '\"') {", "}", ""),
        ("shellscript", "if [ $# -gt ${#a[@]} ]; then (", ")", ""),
        ("shellscript", "x=( # )", ")", ""),
        ("lua", "--[[ ( ]] f(", ")", ""),
        ("css", "a { /* } */ color: red;", "}", ""),
        ("python", "x = f('''a\n(''', \"(\", [", "])", ""),
    ],
)
def test_brackets_are_counted_outside_strings_and_comments_of_the_language(language, text, closers, quote):
    brackets = balance(text, language_of(language))
    assert (brackets.closers, brackets.quote, brackets.num_stray) == (closers, quote, 0)


ABOVE = "import json\n\n\ndef load(path):\n    return json.load(open(path))\n"
OLD = "def total(orders):\n    return sum(orders)\n"
BELOW = "\n\ndef average(orders):\n    return total(orders) / len(orders)\n\n\nx = 1\n"
NEW = "def total(items):\n    return sum(items)"


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        pytest.param(NEW, NEW, id="the answer alone"),
        pytest.param(ABOVE + NEW + BELOW, NEW, id="the whole file"),
        pytest.param(NEW + "\n\n\ndef average(orders):", NEW, id="the beginning of the code below"),
        pytest.param(NEW + "\n\ndef average(orders):\n    return tot", NEW, id="an unfinished line of the code below"),
        pytest.param("    return json.load(open(path))\n" + NEW, NEW, id="a long line above"),
        pytest.param(NEW + "\ndef mean(orders):", NEW + "\ndef mean(orders):", id="new code after it"),
        pytest.param(OLD, OLD, id="unchanged"),
        pytest.param("import json\n" + NEW, "import json\n" + NEW, id="the first line of the file, not the one above"),
    ],
)
def test_an_answer_loses_the_code_around_the_selection(answer, text):
    assert without_surroundings(answer, OLD, ABOVE, BELOW) == text


@pytest.mark.parametrize(
    ("above", "body", "below"),
    [
        pytest.param("def total(a):\n", "    return sum(a)\n", "", id="Python"),
        pytest.param("    def run(self):\n", "        go()\n", "", id="a method"),
        pytest.param("function add(a, b) {\n", "  return a + b;\n", "}\n", id="JavaScript"),
    ],
)
def test_an_answer_loses_the_header_of_its_block(above, body, below):
    answer = f"{above}{body}{below}".rstrip("\n")
    assert without_surroundings(answer, "    pass\n", above, below) == body.rstrip("\n")


def test_a_line_that_the_selection_shares_with_the_code_below_stays():
    line = "    return sum(order.price for order in orders)"
    answer = f"def paid(orders):\n{line}"
    assert without_surroundings(answer, f"def f(orders):\n{line}\n", "", f"{line}\n") == answer


def test_lambda_is_a_name_outside_of_python():
    cursor = Cursor("x = g(", ", 1)")
    assert [gap_end("lambda, 4)", cursor, language_of(name)) for name in ("javascript", "python")] == [6, 9]


@given(TEXTS, TEXTS, TEXTS)
def test_minimal_changes_turn_the_old_text_into_the_new_one(before, old, new):
    changes = minimal_changes(old, new, len(before))
    assert all_applied(changes, before + old) == before + new
    for first, second in pairwise(changes):
        assert first.end <= second.start
    for change in changes:
        for at in (change.start - len(before), change.end - len(before)):
            assert old[at - 1 : at + 1] != "\r\n" or at == 0


def test_only_differing_text_is_changed():
    old = "a = 1\nb = 2\nc = 3\nd = 4\n"
    assert minimal_changes(old, old.replace("2", "20")) == (Change(11, 11, "0"),)
    assert minimal_changes(old, old.replace("b = 2\n", "")) == (Change(6, 12, ""),)
    changes = minimal_changes(old, "x = 1\nb = 2\nc = 3\nd = 5\n", 100)
    assert changes == (Change(100, 101, "x"), Change(122, 123, "5"))
    assert minimal_changes(old, old) == ()
