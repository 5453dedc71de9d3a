import pytest

from dg_lsp.bench.replay.accept import Level, Taking, taking


@pytest.mark.parametrize(
    ("item", "coming", "taken", "level", "presses"),
    [
        pytest.param("x + y", "x + y\n", "x + y", Level.WHOLE, 1, id="all of it"),
        pytest.param("x + y", "x + y + z\n", "x + y", Level.WHOLE, 1, id="right as far as it goes"),
        pytest.param("x\n  y", "x\n  y\n", "x\n  y", Level.WHOLE, 1, id="two lines"),
        pytest.param("x + y\n  z", "x + y\n  w\n", "x + y", Level.LINE, 1, id="the first line"),
        pytest.param("x + y", "x - y\n", "x", Level.WORDS, 1, id="a word"),
        pytest.param("self.width = 3", "self.width = width\n", "self.width =", Level.WORDS, 4, id="words and signs"),
        pytest.param("th = 3", "th = 4", "th =", Level.WORDS, 2, id="the rest of a word"),
        pytest.param(" = one\n two", " = one_more", None, None, 0, id="half a word is none, and a sign is no word"),
        pytest.param("foo(x)", "foo()", "foo(", Level.WORDS, 2, id="up to a wrong argument"),
        pytest.param("(a)", "(b)", None, None, 0, id="a sign alone"),
        pytest.param("wid", "width", None, None, 0, id="the beginning of a word"),
        pytest.param("a", "b", None, None, 0, id="nothing"),
        pytest.param("):", "):\n", "):", Level.WHOLE, 1, id="signs that are all of the item"),
        pytest.param("x", "x", "x", Level.WHOLE, 1, id="at the end of the text"),
        pytest.param("  ", "  x", None, None, 0, id="blanks show nothing"),
        pytest.param("", "x", None, None, 0, id="no item"),
        pytest.param("grüße(é)", "grüße(ö)", "grüße(", Level.WORDS, 2, id="letters of all alphabets"),
    ],
)
def test_as_much_as_is_right(item, coming, taken, level, presses):
    assert taking(item, coming) == (None if taken is None else Taking(taken, level, presses))
