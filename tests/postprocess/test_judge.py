import pytest
from hypothesis import given
from hypothesis import strategies as st

from dg_lsp.context.document import LINE_END, Cursor, Snapshot
from dg_lsp.postprocess.validate import Candidate, Reason, Rejection, judge, rank


def judged(marked, fill, *, max_lines=None, check_syntax=True, language="python"):
    snapshot, offset = Snapshot("file:///a.py", 1, marked.replace("|", "", 1), language), marked.index("|")
    return judge(
        fill if isinstance(fill, bytes) else fill.encode(),
        snapshot=snapshot,
        offset=offset,
        cursor=Cursor.at(snapshot.text, offset),
        max_lines=max_lines,
        score=-0.5,
        check_syntax=check_syntax,
    )


@pytest.mark.parametrize(
    ("marked", "fill", "text"),
    [
        pytest.param("|", "import os\n", "import os", id="an empty file"),
        pytest.param("|x = 1\n", "y = ", "y = ", id="offset 0, in front of text"),
        pytest.param("x = |", "1\ny = 2", "1", id="the end of a file without a line end: one line"),
        pytest.param("print(|)\n", "x)\n", "x", id="the middle of a line joins with its rest"),
        pytest.param("pri|(x)\n", "nt", "nt", id="the middle of a word"),
        pytest.param(
            "def f():\n    |\n", "    x = 1\n    return x\n", "x = 1\n    return x", id="a block on a blank line"
        ),
        pytest.param("def f():\r\n    |\r\n", "x = 1\n    return x\n", "x = 1\r\n    return x", id="CRLF"),
        pytest.param("def f():\r    |\r", "x = 1\n    return x\n", "x = 1\r    return x", id="CR"),
        pytest.param(
            "a\r\nb\r\nc\r\nd\r\ndef f():\n    |\n", "x\n    return x", "x\n    return x", id="line ends as right above"
        ),
        pytest.param("def f():\n\t|\n", "if x:\n        return x", "if x:\n\t\treturn x", id="tabs"),
        pytest.param("def f():\n\t|\n", "\tif x:\n\t\treturn x", "if x:\n\t\treturn x", id="tabs from the model"),
        pytest.param("def f():\n\tx = 1\n|\n", "    return x", "\treturn x", id="the margin of a file of tabs"),
        pytest.param("if x:\n\tf(|)\t# y\n", "a)", "a", id="a tab inside of the line"),
        pytest.param("x = '😋|'\n", "é'", "é", id="an emoji before the cursor"),
        pytest.param("def f():\n    |\n    return y\n", "y = 1\n    return y", "y = 1", id="not what follows"),
        pytest.param("x = |\n", "f(1", "f(1)", id="a bracket left open"),
        pytest.param("x = |\n", "1 😋".encode()[:-2], "1", id="a character cut apart by the end of the fill"),
        pytest.param("x = |\n", "1   ", "1", id="trailing blanks"),
        pytest.param("def f():\n    |\n", "\n    return 1", "return 1", id="a line end before the line asked for"),
    ],
)
def test_candidates(marked, fill, text):
    assert judged(marked, fill) == Candidate(text, -0.5)


@pytest.mark.parametrize(
    ("marked", "fill", "reason"),
    [
        pytest.param("|", "", Reason.EMPTY, id="nothing"),
        pytest.param("|", " \n\t\n", Reason.EMPTY, id="blanks"),
        pytest.param("x = 1|\n", "\n", Reason.EMPTY, id="a line end after a full line"),
        pytest.param("x = 1|\n", "\ny = 2", Reason.EMPTY, id="nothing on this line"),
        pytest.param("|", "a\0", Reason.NOT_TEXT, id="NUL"),
        pytest.param("|", b"\xff", Reason.NOT_TEXT, id="no UTF-8"),
        pytest.param("f(|)\n", ")", Reason.REPEATS_SUFFIX, id="the bracket that follows"),
        pytest.param("|\nreturn\n", "return", Reason.REPEATS_SUFFIX, id="the line that follows"),
        pytest.param("import os\n|\n", "import os", Reason.REPEATS_PREFIX, id="the line before"),
        pytest.param("x = |\n", "1 2", Reason.SYNTAX_ERROR, id="nonsense"),
    ],
)
def test_rejections(marked, fill, reason):
    rejection = judged(marked, fill)
    assert isinstance(rejection, Rejection)
    assert rejection.reason is reason


@pytest.mark.parametrize(
    ("marked", "max_lines", "text"),
    [
        pytest.param("x = |\n", None, "f(1)", id="the place allows one line"),
        pytest.param("x = |\n", 2, "f(1)\ny = 2", id="two are asked for"),
        pytest.param("|\n", None, "f(1)\ny = 2\nz = 3", id="the place allows any number"),
        pytest.param("|\n", 1, "f(1)", id="one is asked for"),
    ],
)
def test_max_lines(marked, max_lines, text):
    assert judged(marked, "f(1)\ny = 2\nz = 3", max_lines=max_lines) == Candidate(text, -0.5)


def test_a_block_ends_before_the_next_function_unless_more_lines_are_asked_for():
    marked, fill = "def f():\n    |\n", "return 1\n\n\ndef g():\n    return 2"
    assert judged(marked, fill) == Candidate("return 1", -0.5)
    assert judged(marked, fill, max_lines=9) == Candidate(fill, -0.5)


def test_an_invoked_block_may_start_below_a_header():
    assert judged("def f():|\n", "\n    return 1", max_lines=5) == Candidate("\n    return 1", -0.5)


def test_syntax_is_checked_for_known_languages_only_and_when_asked():
    assert judged("x = |\n", "1 2", check_syntax=False) == Candidate("1 2", -0.5)
    assert judged("x = |\n", "1 2", language="plaintext") == Candidate("1 2", -0.5)


buffers = st.text("ab1 ('\"):#\t\r\n\x0cé😋", max_size=60)
fills = st.text("ab1 ('\"):#\t\n", max_size=30).map(str.encode) | st.binary(max_size=8)


@given(buffers, fills, st.data())
def test_any_fill_gives_text_that_fits_the_buffer_or_a_reason(text, fill, data):
    offset = data.draw(st.integers(0, len(text)))
    max_lines = data.draw(st.none() | st.integers(1, 3))
    result = judged(text[:offset] + "|" + text[offset:], fill, max_lines=max_lines)
    if isinstance(result, Rejection):
        return
    assert result.text.strip()
    line_ends = LINE_END.findall(result.text)
    assert len(set(line_ends)) <= 1
    assert len(line_ends) < (max_lines or 99)


@given(buffers.filter(lambda text: "\r" not in text), fills, st.data())
def test_a_line_with_text_gets_no_line_end(text, fill, data):
    offset = data.draw(st.integers(0, len(text)))
    line = text[:offset].rpartition("\n")[2] + text[offset:].partition("\n")[0]
    result = judged(text[:offset] + "|" + text[offset:], fill)
    if line.strip() and isinstance(result, Candidate):
        assert "\n" not in result.text


def test_a_giant_line_costs_no_more_than_its_neighbourhood(giant_line):
    text = giant_line
    snapshot = Snapshot("file:///a.py", 1, text)
    more = {"cursor": Cursor.at(text, 2_500_000), "max_lines": None, "score": 0.0, "check_syntax": True}
    result = judge(b" = 1", snapshot=snapshot, offset=2_500_000, **more)
    assert result == Candidate(" = 1", 0.0)
    assert text.num_read < 100_000


@pytest.mark.parametrize(
    ("marked", "fill", "is_shown"),
    [
        pytest.param("|\n    return x\n", "def f(x):", True, id="opens the block that follows"),
        pytest.param("|\n    return x\n", "x = 1", False, id="leaves the block that follows without an opener"),
        pytest.param("if |\n    f()\n", "x:  # why: not", True, id="an opener with a comment"),
        pytest.param("if |\n    f()\n", "x == 1", False, id="the rest of a line"),
        pytest.param("f(|\n    b)\n", "a,", True, id="inside of brackets depth is free"),
        pytest.param("x = |\n    b)\n", "f(a,", True, id="brackets that it opens itself"),
        pytest.param("x = |\n    2\n", "1 + \\", True, id="a line that goes on"),
        pytest.param("def f():\n    |\n    return 1\n", "x = 1", True, id="what follows is as deep"),
        pytest.param("def f():\n    if x:\n        |\n    return 1\n", "y()", True, id="what follows is less deep"),
        pytest.param("def f():\n    |\n", "x = 1", True, id="nothing follows"),
        pytest.param('def f():\n    """|\n        deep\n    """\n', "words", True, id="inside of a string"),
    ],
)
def test_a_fill_strands_no_block(marked, fill, is_shown):
    result = judged(marked, fill)
    assert isinstance(result, Candidate) == is_shown, result
    if not is_shown:
        assert result.reason is Reason.INDENTATION
    assert isinstance(judged(marked, fill, check_syntax=False), Candidate)
    assert isinstance(judged(marked, fill, language="plaintext"), Candidate)


def test_candidates_are_ranked_without_duplicates():
    empty, wrong, spaced = Rejection(Reason.EMPTY), Rejection(Reason.SYNTAX_ERROR, "("), Candidate(" a", -2.0)
    results = [Candidate("b", -2.0), empty, Candidate("a \n", -1.0), wrong, spaced, Candidate("a", -3.0)]
    assert rank(results) == ((Candidate("a \n", -1.0), Candidate("b", -2.0), spaced), (empty, wrong))
