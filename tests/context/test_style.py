import pytest
from hypothesis import given
from hypothesis import strategies as st

from dg_lsp.context.document import SAMPLE_CHARS, TextStyle

TABS = TextStyle("\n", True)


@pytest.mark.parametrize(
    ("text", "line_end", "uses_tabs"),
    [
        pytest.param("", "\n", False, id="an empty buffer is LF with spaces"),
        pytest.param("x = 1", "\n", False, id="so is one line without an end"),
        pytest.param("a\nb\n", "\n", False, id="LF"),
        pytest.param("a\r\nb\r\n", "\r\n", False, id="CRLF"),
        pytest.param("a\rb\r", "\r", False, id="CR alone, as on very old Macs"),
        pytest.param("a\r\nb\r\nc\n", "\r\n", False, id="of mixed line ends the most common"),
        pytest.param("a\r\nb\n", "\n", False, id="LF wins a tie"),
        pytest.param("a\x0cb\u2028c\r\nd", "\r\n", False, id="form feed and U+2028 end no line"),
        pytest.param("if x:\n\ty\n", "\n", True, id="tabs"),
        pytest.param("if x:\n\ty\n  z\n    z\n", "\n", False, id="more lines with spaces than with tabs"),
        pytest.param("\tx\n", "\n", True, id="a tab at the very beginning"),
        pytest.param("  x\n\ty\n", "\n", False, id="spaces win a tie"),
        pytest.param("/*\n * a\n * b\n */\nf() {\n\tx\n}\n", "\n", True, id="one leading space is no indentation"),
    ],
)
def test_style_of_a_beginning(text, line_end, uses_tabs):
    assert TextStyle.of(text) == TextStyle(line_end, uses_tabs)


@pytest.mark.parametrize(
    ("text", "line_end"),
    [
        pytest.param("a\r\nb\r\nc\nd|", "\n", id="the line above is LF in a CRLF file"),
        pytest.param("a\nb\nc\r\nd|\n", "\r\n", id="the line above is CRLF in an LF file"),
        pytest.param("a\nb\nc\rd|\n", "\r", id="the line above is CR"),
        pytest.param("|a\r\nb\r\n", "\r\n", id="nothing above: the most common"),
    ],
)
def test_mixed_line_ends_follow_the_line_above(text, line_end):
    assert TextStyle.of(text.replace("|", ""), text.index("|")).line_end == line_end


def test_only_a_sample_near_the_cursor_is_looked_at():
    text = "a\r\n" * SAMPLE_CHARS + "if x:\n\ty\n" * SAMPLE_CHARS
    assert TextStyle.of(text) == TextStyle("\r\n", False)
    assert TextStyle.of(text, len(text)) == TABS


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("a\r\nb\rc\nd", "a\nb\nc\nd", id="every line end is LF"),
        pytest.param("\tif x:\n\t\ty", "    if x:\n        y", id="tabs are four spaces"),
        pytest.param("  \tx", "    x", id="a tab goes to the next column of four"),
        pytest.param("x\t# y", "x   # y", id="inside a line too"),
        pytest.param("a  \n\t\nb", "a\n\nb", id="no trailing blanks"),
        pytest.param("a\nx = ", "a\nx = ", id="but before the cursor they stay"),
        pytest.param("a\x0cb\u2028c", "a\x0cb\u2028c", id="form feed and U+2028 are text"),
        pytest.param("# é😋 日本", "# é😋 日本", id="emoji and CJK are left alone"),
        pytest.param("x\ud83d", "x\ufffd", id="half a surrogate pair cannot be encoded"),
    ],
)
def test_to_model(text, shown):
    assert TextStyle().to_model(text) == shown


@pytest.mark.parametrize(
    ("style", "line_prefix", "fill", "text"),
    [
        pytest.param(TextStyle(), "", "a\n    b", "a\n    b", id="LF and spaces need nothing"),
        pytest.param(TextStyle("\r\n"), "", "a\nb\n", "a\r\nb\r\n", id="CRLF"),
        pytest.param(TextStyle("\r"), "", "a\nb", "a\rb", id="CR"),
        pytest.param(TABS, "", "if x:\n    y\n      z", "if x:\n\ty\n\t  z", id="tabs and what is over"),
        pytest.param(TABS, "\t", "    x", "\tx", id="the first line goes on in columns of four"),
        pytest.param(TABS, "  ", "  x", "  x", id="blanks that reach no column of four stay blanks"),
        pytest.param(TABS, "x =", "    1", "    1", id="blanks inside a line stay blanks"),
        pytest.param(TABS, "\tx = ", "1\n    y\nz", "1\n\ty\nz", id="deeper, equal and no indentation"),
        pytest.param(TABS, "    ", "a:\n        b", "a:\n        b", id="a line of spaces in a file of tabs"),
        pytest.param(
            TextStyle(), "\t", "a:\n        b\n    c", "a:\n\t\tb\n\tc", id="a line of tabs in a file of spaces"
        ),
        pytest.param(TABS, "\t  ", "a(\n      b\n    c", "a(\n\t  b\n\tc", id="a mixed indentation comes again"),
        pytest.param(TABS, "  \t", "a(\n    b", "a(\n  \tb", id="however odd it is"),
        pytest.param(TABS, "\t", "a\n\nb", "a\n\nb", id="an empty line stays empty"),
        pytest.param(TABS, "", "x = 1    # y", "x = 1    # y", id="blanks before a comment stay"),
    ],
)
def test_from_model(style, line_prefix, fill, text):
    assert style.from_model(fill, line_prefix) == text


@given(
    st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["x", "é😋 = 1", "f(a,  b)"])), min_size=1),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.booleans(),
)
def test_what_the_model_is_shown_comes_back_as_it_was(lines, line_end, uses_tabs):
    text = line_end.join(("\t" if uses_tabs else "    ") * depth + body for depth, body in lines)
    style = TextStyle(line_end, uses_tabs)
    assert style.from_model(style.to_model(text), "") == text
