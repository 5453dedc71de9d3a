import pytest

from dg_lsp.context.document import Cursor
from dg_lsp.context.languages import PLAIN, language_of
from dg_lsp.postprocess.brackets import balance
from dg_lsp.postprocess.text_edits import (
    align,
    cut_at_margin,
    cut_loops,
    drop_below,
    drop_rest,
    is_repetitive,
    repeats_above,
    to_text,
    without_surroundings,
)

PYTHON = language_of("python")


def cursor_of(marked):
    return Cursor.at(marked.replace("|", "", 1), marked.index("|"))


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
    ("text", "cut"),
    [
        pytest.param("a\nb\nb\nb\nb\nc", "a\nb", id="three equal lines and all lines after them"),
        pytest.param("a\na\nb", "a\na\nb", id="two equal lines"),
        pytest.param("a\n\n\n\nb", "a\n\n\n\nb", id="blank lines"),
        pytest.param("]\n]\n]", "]\n]\n]", id="lines of brackets"),
    ],
)
def test_a_fill_ends_before_a_line_that_repeats(text, cut):
    assert cut_loops(text) == cut


@pytest.mark.parametrize(
    ("text", "is_loop"),
    [
        pytest.param("self._get(width, width, width, width, width, width", True, id="one word six times"),
        pytest.param("x = a._ss(b._ss(b._ss(b._ss(b._ss(b._ss(", True, id="nested calls"),
        pytest.param("[0, 0, 0, 0, 0, 0, 0, 0]", False, id="equal numbers"),
        pytest.param("# ----------------------------", False, id="a ruler in a comment"),
        pytest.param("return a + b + c + d + e + f", False, id="a sum of different names"),
    ],
)
def test_a_piece_that_occurs_five_times_is_repetitive(text, is_loop):
    assert is_repetitive(text) is is_loop


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
    ("prefix", "fill", "cut"),
    [
        pytest.param("    ", "return 1\n\n\ndef g():\n    pass", "return 1", id="the next function"),
        pytest.param("", "    return 1\n\nx = 1", "    return 1", id="the fill contains the indentation"),
        pytest.param("    ", "\n\n    x = 1\n\ny = 2", "\n\n    x = 1", id="a blank first line"),
        pytest.param("    ", "a,\n)", None, id="no blank line between"),
        pytest.param("    ", "x = 1\n\n    y = 2", None, id="the same function continues"),
        pytest.param("", "def f():\n    x\n\n\ndef g():\n    y", None, id="the cursor is at the margin"),
    ],
)
def test_a_fill_ends_with_its_block(prefix, fill, cut):
    assert cut_at_margin(fill, Cursor(prefix, ""), PYTHON) == (fill if cut is None else cut)


@pytest.mark.parametrize(
    ("marked", "fill", "joined"),
    [
        pytest.param("print(|)", "f(x)", "f(x)", id="the bracket belongs to a call in the fill"),
        pytest.param("print(|)", "x) + f(y)", "x) + f(y", id="the bracket of the line closes another one"),
        pytest.param("f(g(|)", "x)", "x)", id="the line needs both brackets"),
        pytest.param("if x|:", " > 0:", " > 0", id="a colon"),
        pytest.param("f(|, y)", "x, y", "x", id="a part of the rest of the line"),
        pytest.param('print("|")', 'abc")', "abc", id="quote and bracket"),
        pytest.param('f(|"a"]', '"b" + ', '"b" + ', id="the quote begins a string in the fill"),
        pytest.param("print(|)", "x) + y", "x", id="the rest of the line inside the fill"),
        pytest.param("print(|)", "x)  # y", "x", id="the rest of the line, then a comment"),
        pytest.param("x = | + 1", "a + 1 + b", "a + 1 + b", id="the rest of the line inside a valid fill"),
        pytest.param("f(|value)", "key=value", "key=", id="a whole word"),
        pytest.param("pri|nt(x)", "nt", "", id="the rest of a word"),
        pytest.param("f(|x)", "max", "max", id="one equal letter"),
        pytest.param("|name = 1", "first_n", "first_n", id="a part of a word"),
        pytest.param("|name = 1", "first_name", "first_", id="four letters at the end of a word"),
        pytest.param("a | + b", "* c ", "* c", id="one blank too many"),
        pytest.param("|    b", "if a:\n    ", "if a:\n    ", id="the cursor inside an indentation"),
    ],
)
def test_a_fill_does_not_repeat_the_rest_of_the_line(marked, fill, joined):
    assert drop_rest(fill, cursor_of(marked), PYTHON) == joined


@pytest.mark.parametrize(
    ("marked", "fill", "joined"),
    [
        pytest.param("|\n\n\nb = 1\n", "a = 1\n\nb = 1", "a = 1\n", id="blank lines before the next line"),
        pytest.param("|\nb\n", "a\nb\nc", "a", id="all lines below, and more"),
        pytest.param("f(\n    a,|\n)\n", "\n    b,\n)", "\n    b,", id="a closing bracket on its own line"),
        pytest.param("    size = |\n    size = 10\n", "10", "", id="the line becomes equal to the next one"),
        pytest.param("    0|\n    0,\n", ",", ",", id="a short line"),
        pytest.param(
            "|\nvalue = compute_all(x)\nc\n", "a\nvalue = compute_all(x)\nd", "a", id="a long line, then others"
        ),
        pytest.param("|\n    return False\nc\n", "a\n    return False\nd", None, id="a common line, then others"),
        pytest.param("|\nb\n", "value = compute_all(x)\nc", None, id="a long line that is not the next one"),
    ],
)
def test_a_fill_does_not_repeat_the_lines_below(marked, fill, joined):
    assert drop_below(fill, cursor_of(marked)) == (fill if joined is None else joined)


@pytest.mark.parametrize(
    ("marked", "fill", "repeats"),
    [
        pytest.param("aaaa\nbbbb\n|", "aaaa\nbbbb", True, id="several lines above"),
        pytest.param("    size = 10\n    size =|", " 10", True, id="the line becomes equal to the one above"),
        pytest.param("size = 10\n    |", "size = 10", True, id="the line above in another indentation"),
        pytest.param("aaaa\nbbbb\n|", "bbbb\ncccc", False, id="the line above, then a new line"),
        pytest.param("    0,\n    |", "0,", False, id="a short line"),
    ],
)
def test_a_fill_that_repeats_the_lines_above(marked, fill, repeats):
    assert repeats_above(fill, cursor_of(marked)) is repeats


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


def test_prose_is_not_cut_where_code_would_leave_its_scope():
    assert cut_at_margin("an item\n\nA paragraph", Cursor("  ", ""), PLAIN) == "an item\n\nA paragraph"
    assert cut_at_margin("x;\n\ny;", Cursor("  ", ""), language_of("go")) == "x;"


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


def test_a_line_that_the_selection_shares_with_the_code_below_stays():
    line = "    return sum(order.price for order in orders)"
    answer = f"def paid(orders):\n{line}"
    assert without_surroundings(answer, f"def f(orders):\n{line}\n", "", f"{line}\n") == answer
