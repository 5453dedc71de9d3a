import pytest

from dg_lsp.context.document import Cursor
from dg_lsp.postprocess.text_edits import drop_below, drop_rest, repeats_above


def place_of(marked):
    return Cursor.at(marked.replace("|", "", 1), marked.index("|"))


@pytest.mark.parametrize(
    ("marked", "fill", "joined"),
    [
        pytest.param("print(|)", "x)", "x", id="a bracket that is there already"),
        pytest.param("print(|)", "f(x)", "f(x)", id="not the bracket of a call in the fill"),
        pytest.param("print(|)", "f(x))", "f(x)", id="but the one after it"),
        pytest.param("print(|)", "x) + f(y)", "x) + f(y", id="the line's bracket may close another one"),
        pytest.param("f(g(|)", "x)", "x)", id="not where the line needs both"),
        pytest.param("    a, b|)", ", c)", ", c", id="opened on a line above"),
        pytest.param("def f(|):", "a, b):", "a, b", id="bracket and colon"),
        pytest.param("if x|:", " > 0:", " > 0", id="a colon"),
        pytest.param("f(|, b)", "a, b)", "a", id="the whole rest of the line"),
        pytest.param("f(|, y)", "x, y", "x", id="a head of it"),
        pytest.param("f(|, y)   ", "x, y)", "x", id="blanks at the line's end do not count"),
        pytest.param("f(|)", "x) ", "x", id="nor do the fill's"),
        pytest.param('print("|")', 'abc")', "abc", id="quote and bracket"),
        pytest.param('print("|")', 'abc"', "abc", id="a quote"),
        pytest.param('f(|"a"]', '"b" + ', '"b" + ', id="not the quote of a string in the fill"),
        pytest.param("print(|)", "x) + y", "x", id="the rest inside of the fill"),
        pytest.param("print(|)", "x)  # y", "x", id="the rest and a comment after it"),
        pytest.param("x = | + 1", "a + 1 + b", "a + 1 + b", id="the rest inside where it disturbs nothing"),
        pytest.param("f(|value)", "key=value", "key=", id="a whole word"),
        pytest.param("pri|nt(x)", "nt", "", id="what the word goes on with"),
        pytest.param("f(|x)", "max", "max", id="a letter in common is a coincidence"),
        pytest.param("|name = 1", "first_n", "first_n", id="so is half a word"),
        pytest.param("f(|name)", "x, n", "x, n", id="and the beginning of one"),
        pytest.param("|name = 1", "first_name", "first_", id="but not four letters to the end of a word"),
        pytest.param("a | + b", "* c ", "* c", id="one blank too many"),
        pytest.param("|    b", "if a:\n    ", "if a:\n    ", id="an indentation split by the cursor"),
        pytest.param("f(|)", "", "", id="nothing"),
        pytest.param("x = |", "f(x)", "f(x)", id="nothing follows"),
        pytest.param("x = |   ", "f(x) ", "f(x) ", id="only blanks follow"),
        pytest.param("x = '😋|'", "é'", "é", id="after an emoji"),
    ],
)
def test_drop_rest(marked, fill, joined):
    assert drop_rest(fill, place_of(marked), "#") == joined


@pytest.mark.parametrize(
    ("marked", "fill", "joined"),
    [
        pytest.param("|\nb = 1\n", "a = 1\nb = 1", "a = 1", id="the next line at the end of the fill"),
        pytest.param("|\n\n\nb = 1\n", "a = 1\n\nb = 1", "a = 1\n", id="blank lines do not count"),
        pytest.param("|\nb\nc\n", "a\nb\nc", "a", id="several lines"),
        pytest.param("|\nb\n", "a\nb\nc", "a", id="all that is known of what follows, and more"),
        pytest.param("|\nb = 1\n", "b = 1", "", id="nothing but the next line"),
        pytest.param("x = 1|\ny = 2\n", "\ny = 2", "", id="a line end and the next line"),
        pytest.param("f(\n    a,|\n)\n", "\n    b,\n)", "\n    b,", id="a closing bracket on its own line"),
        pytest.param("    size = |\n    size = 10\n", "10", "", id="the line becomes the next one"),
        pytest.param("    0|\n    0,\n", ",", ",", id="a short line may come twice"),
        pytest.param(
            "|\nvalue = compute_all(x)\nc\n", "a\nvalue = compute_all(x)\nd", "a", id="a long line, then other ones"
        ),
        pytest.param("|\n    return False\nc\n", "a\n    return False\nd", None, id="a common line, then other ones"),
        pytest.param("|\nb\n", "value = compute_all(x)\nc", None, id="a long line that is not the next one"),
        pytest.param("|\n    b\n", "a\nb", None, id="another indentation is another line"),
        pytest.param("f(|)\nb = 1\n", "a,\nb = 1", None, id="text after the cursor: not our line"),
        pytest.param("|", "a\nb", None, id="the end of the file"),
        pytest.param("|\n\n \n", "a\n\nb", None, id="only blank lines follow"),
    ],
)
def test_drop_below(marked, fill, joined):
    assert drop_below(fill, place_of(marked)) == (fill if joined is None else joined)


@pytest.mark.parametrize(
    ("marked", "fill", "repeats"),
    [
        pytest.param("import os\n|", "import os", True, id="the line above"),
        pytest.param("import os\n\n\n|", "import os", True, id="blank lines between do not count"),
        pytest.param("aaaa\nbbbb\n|", "aaaa\nbbbb", True, id="several lines above"),
        pytest.param("    size = 10\n    size =|", " 10", True, id="the line becomes the one above"),
        pytest.param("size = 10\n    |", "size = 10", True, id="indentation does not count on a blank line"),
        pytest.param("aaaa\nbbbb\n|", "bbbb\ncccc", False, id="it goes on with something new"),
        pytest.param("aaaa\nbbbb\n|", "aaaa\ncccc", False, id="the second line differs"),
        pytest.param("    0,\n    |", "0,", False, id="a short line may come twice"),
        pytest.param("import os\n|  # x", "import os", False, id="something follows on the line"),
        pytest.param("|", "import os", False, id="nothing above"),
    ],
)
def test_repeats_above(marked, fill, repeats):
    assert repeats_above(fill, place_of(marked)) is repeats
