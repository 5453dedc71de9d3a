import pytest

from dg_lsp.postprocess.text_edits import (
    cut_loops,
    is_repetitive,
    to_text,
)


@pytest.mark.parametrize(
    ("fill", "text"),
    [
        pytest.param(b"", "", id="nothing"),
        pytest.param("é😋 日本".encode(), "é😋 日本", id="any script, emoji"),
        pytest.param("👩\u200d💻".encode(), "👩\u200d💻", id="an emoji of several characters"),
        pytest.param(b"a\r\nb\rc\n", "a\nb\nc\n", id="all line ends become LF"),
        pytest.param(b"\tx", "\tx", id="tabs are text"),
        pytest.param("x😋".encode()[:-1], "x", id="a character cut apart by the end is left out"),
        pytest.param(b"\xf0\x9f", "", id="also when there is nothing else"),
        pytest.param("😋x".encode()[1:], None, id="a character cut apart elsewhere"),
        pytest.param(b"a\xffb", None, id="a byte that UTF-8 does not have"),
        pytest.param(b"\xc0\xafx", None, id="an overlong form"),
        pytest.param(b"\xed\xa0\xbdx", None, id="half a surrogate pair"),
        pytest.param(b"a\0b", None, id="NUL"),
        pytest.param(b"a\x1b[0m", None, id="escape"),
        pytest.param(b"a\x0cb", None, id="form feed"),
        pytest.param(b"a\x7f", None, id="delete"),
        pytest.param("a\x85b".encode(), None, id="next line, a control character of Unicode"),
        pytest.param("a\u2028b".encode(), None, id="a line separator"),
        pytest.param("a\ufffdb".encode(), None, id="the replacement character"),
        pytest.param("\ufeffa".encode(), None, id="a byte order mark"),
        pytest.param("a\u202eb".encode(), None, id="text that runs backwards"),
    ],
)
def test_to_text(fill, text):
    assert to_text(fill) == text


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        pytest.param("a\nb\nb\nb\nb\nc", "a\nb", id="three equal lines and all after them"),
        pytest.param("a\nb\nb\nb", "a\nb", id="three at the end"),
        pytest.param("a\na\nb", "a\na\nb", id="two may be meant"),
        pytest.param("a\n\n\n\nb", "a\n\n\n\nb", id="blank lines are no loop"),
        pytest.param("]\n]\n]", "]\n]\n]", id="nor are brackets"),
        pytest.param("", "", id="nothing"),
    ],
)
def test_cut_loops(text, cut):
    assert cut_loops(text) == cut


@pytest.mark.parametrize(
    ("text", "is_loop"),
    [
        pytest.param("self._get(width, width, width, width, width, width", True, id="one word over and over"),
        pytest.param("x = a._ss(self._ss(self._ss(self._ss(self._ss(self._ss(", True, id="a nest of the same call"),
        pytest.param("width, width, width, width", False, id="four times may be meant"),
        pytest.param("[0, 0, 0, 0, 0, 0, 0, 0]", False, id="numbers are data"),
        pytest.param("# ----------------------------", False, id="a ruler"),
        pytest.param("return a + b + c + d + e + f", False, id="a sum of different names"),
        pytest.param("aaaa = bbbb\n" * 3, False, id="lines are another rule's matter"),
        pytest.param("", False, id="nothing"),
    ],
)
def test_a_piece_that_comes_five_times_is_a_model_going_in_circles(text, is_loop):
    assert is_repetitive(text) is is_loop
