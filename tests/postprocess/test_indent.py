import pytest

from dg_lsp.context.document import Cursor
from dg_lsp.postprocess.text_edits import align, cut_at_margin


@pytest.mark.parametrize(
    ("above", "prefix", "fill", "aligned"),
    [
        pytest.param("def f():", "    ", "return 1", "return 1", id="the fill goes on after the indentation"),
        pytest.param("def f():", "    ", "    return 1", "return 1", id="the fill repeats the indentation"),
        pytest.param("def f():", "", "    return 1", "    return 1", id="the fill brings the indentation"),
        pytest.param("    if x:", "    ", "    return 1", "    return 1", id="a block one deeper than was typed"),
        pytest.param("    if x:", "    ", "        return 1", "    return 1", id="repeated and one deeper"),
        pytest.param("    x = 1", "    ", "  y = 2", "y = 2", id="deeper than the line above allows"),
        pytest.param("x = 1", "    ", "    y = 2", "y = 2", id="typed deeper than it should be"),
        pytest.param("    f(", "        ", "        a,", "a,", id="in a bracket, repeated"),
        pytest.param("    f(", "    ", "    a,", "    a,", id="in a bracket one deeper"),
        pytest.param("    f(", "    ", "        a,", "        a,", id="in a bracket two deeper"),
        pytest.param("def f():", "    ", "for x in y:\n        x\n    z", None, id="other lines are absolute"),
        pytest.param(
            "def f():", "    ", "for x in y:\n    x\nz", "for x in y:\n        x\n    z", id="a fill from the margin"
        ),
        pytest.param(
            "    if x:",
            "    ",
            "    for y in z:\n        y",
            "    for y in z:\n            y",
            id="on top of what was typed",
        ),
        pytest.param("def f():", "    ", "if x:\n\n    y", "if x:\n\n        y", id="blank lines stay blank"),
        pytest.param("class A(", "        ", "B):\n    x = 1", None, id="the end of a header opened above"),
        pytest.param("def f():", "    ", "# as in:\n    x = 1", None, id="a comment opens no block"),
        pytest.param("def f():", "    x = ", "    1", None, id="a line with text is left alone"),
        pytest.param("def f():", "    ", "\n    x", None, id="a blank first line is left alone"),
        pytest.param("", "    ", "", None, id="nothing"),
    ],
)
def test_align(above, prefix, fill, aligned):
    assert align(fill, Cursor(prefix, "", (above,)), "#") == (fill if aligned is None else aligned)


@pytest.mark.parametrize(
    ("prefix", "fill", "cut"),
    [
        pytest.param("    ", "return 1\n\n\ndef g():\n    pass", "return 1", id="the next function"),
        pytest.param("", "    return 1\n\nx = 1", "    return 1", id="the fill brings the indentation"),
        pytest.param("    ", "\n\n    x = 1\n\ny = 2", "\n\n    x = 1", id="a blank first line"),
        pytest.param("    ", "a,\n)", None, id="without a blank line it belongs together"),
        pytest.param("    ", "x = 1\n\n    y = 2", None, id="the same function goes on"),
        pytest.param("", "def f():\n    x\n\n\ndef g():\n    y", None, id="at the margin anything goes"),
        pytest.param("x = ", "f()\n\ny = 1", None, id="also after text at the margin"),
        pytest.param("    ", "x", None, id="one line"),
    ],
)
def test_cut_at_margin(prefix, fill, cut):
    assert cut_at_margin(fill, Cursor(prefix, "")) == (fill if cut is None else cut)
