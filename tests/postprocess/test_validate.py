import ast
import re
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dg_lsp.context.document import LINE_END, Cursor, Snapshot
from dg_lsp.postprocess.validate import Candidate, Reason, Rejection, judge, judge_rewrite, merge, rank

from .conftest import judged


@pytest.mark.parametrize(
    ("marked", "fill", "text"),
    [
        pytest.param("|", "import os\n", "import os", id="an empty file"),
        pytest.param("x = |", "1\ny = 2", "1", id="the end of a file without a line end"),
        pytest.param("print(|)\n", "x)\n", "x", id="the rest of the line"),
        pytest.param("def f():\n    |\n", "    x = 1\n    return x\n", "x = 1\n    return x", id="a block"),
        pytest.param("def f():\r\n    |\r\n", "x = 1\n    return x\n", "x = 1\r\n    return x", id="CRLF"),
        pytest.param("a\r\nb\r\ndef f():\n    |\n", "x\n    y", "x\n    y", id="the line end of the line above"),
        pytest.param("def f():\n\t|\n", "if x:\n        return x", "if x:\n\t\treturn x", id="tabs"),
        pytest.param("def f():\n\tx = 1\n|\n", "    return x", "\treturn x", id="the margin of a file with tabs"),
        pytest.param("if x:\n\tf(|)\t# y\n", "a)", "a", id="a tab inside the line"),
        pytest.param("x = '😋|'\n", "é'", "é", id="an emoji before the cursor"),
        pytest.param("def f():\n    |\n    return y\n", "y = 1\n    return y", "y = 1", id="the next line"),
        pytest.param("x = |\n", "f(1", "f(1)", id="an open bracket is closed"),
        pytest.param("def f():\n    |\n", "\n    return 1", "return 1", id="a line end before the text"),
    ],
)
def test_a_valid_fill_becomes_a_candidate(marked, fill, text):
    assert judged(marked, fill) == Candidate(text, -0.5)


@pytest.mark.parametrize(
    ("marked", "fill", "reason"),
    [
        pytest.param("|", "", Reason.EMPTY, id="empty"),
        pytest.param("|", " \n\t\n", Reason.EMPTY, id="blanks"),
        pytest.param("x = 1|\n", "\n", Reason.EMPTY, id="a line end after a full line"),
        pytest.param("|", "a\0", Reason.NOT_TEXT, id="NUL"),
        pytest.param("f(|)\n", ")", Reason.REPEATS_SUFFIX, id="the bracket that follows"),
        pytest.param("|\nreturn\n", "return", Reason.REPEATS_SUFFIX, id="the line that follows"),
        pytest.param("import os\n|\n", "import os", Reason.REPEATS_PREFIX, id="the line before"),
        pytest.param("x = |\n", "1 2", Reason.SYNTAX_ERROR, id="nonsense"),
    ],
)
def test_an_invalid_fill_is_rejected_with_its_reason(marked, fill, reason):
    rejection = judged(marked, fill)
    assert isinstance(rejection, Rejection)
    assert rejection.reason is reason


@pytest.mark.parametrize(
    ("marked", "max_lines", "text"),
    [
        pytest.param("x = |\n", None, "f(1)", id="one line inside a line"),
        pytest.param("x = |\n", 2, "f(1)\ny = 2", id="two lines requested"),
        pytest.param("|\n", None, "f(1)\ny = 2\nz = 3", id="any number on an empty line"),
        pytest.param("|\n", 1, "f(1)", id="one line requested"),
    ],
)
def test_a_candidate_has_at_most_the_requested_lines(marked, max_lines, text):
    assert judged(marked, "f(1)\ny = 2\nz = 3", max_lines=max_lines) == Candidate(text, -0.5)


def test_a_block_ends_before_the_next_function_unless_more_lines_are_requested():
    marked = "def f():\n    |\n"
    fill = "return 1\n\n\ndef g():\n    return 2"
    assert judged(marked, fill) == Candidate("return 1", -0.5)
    assert judged(marked, fill, max_lines=9) == Candidate(fill, -0.5)
    assert judged("def f():|\n", "\n    return 1", max_lines=5) == Candidate("\n    return 1", -0.5)


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
    cursor = Cursor.at(text, 2_500_000)
    result = judge(
        b" = 1", snapshot=snapshot, offset=2_500_000, cursor=cursor, max_lines=None, score=0.0, check_syntax=True
    )
    assert result == Candidate(" = 1", 0.0)
    assert text.num_read < 100_000


@pytest.mark.parametrize(
    ("marked", "fill", "is_shown"),
    [
        pytest.param("|\n    return x\n", "def f(x):", True, id="a header above a block"),
        pytest.param("|\n    return x\n", "x = 1", False, id="no header above a block"),
        pytest.param("if |\n    f()\n", "x:  # why: not", True, id="a header with a comment"),
        pytest.param("if |\n    f()\n", "x == 1", False, id="no colon above a block"),
        pytest.param("f(|\n    b)\n", "a,", True, id="inside brackets"),
        pytest.param("x = |\n    b)\n", "f(a,", True, id="after an opened bracket"),
        pytest.param("x = |\n    2\n", "1 + \\", True, id="after a backslash"),
        pytest.param("def f():\n    |\n    return 1\n", "x = 1", True, id="the next line is as deep"),
        pytest.param("def f():\n    if x:\n        |\n    return 1\n", "y()", True, id="the next line is less deep"),
        pytest.param('def f():\n    """|\n        deep\n    """\n', "words", True, id="inside a string"),
    ],
)
def test_a_fill_keeps_the_indentation_of_the_lines_below_valid(marked, fill, is_shown):
    result = judged(marked, fill)
    assert isinstance(result, Candidate) == is_shown, result
    if not is_shown:
        assert result.reason is Reason.INDENTATION
    assert isinstance(judged(marked, fill, check_syntax=False), Candidate)
    assert isinstance(judged(marked, fill, language="plaintext"), Candidate)


@pytest.mark.parametrize(
    ("above", "marked", "below", "fill", "expected"),
    [
        pytest.param("def f(:", "x = [|", "y = )", "1]", Candidate("1]", -0.5), id="errors in other cells"),
        pytest.param("x = 1", "y = |", ")", "f(1", Candidate("f(1)", -0.5), id="a bracket of another cell"),
        pytest.param("", "|", "b = a\nprint(b)", "a = 1\nb = a", Candidate("a = 1", -0.5), id="the next cell"),
        pytest.param("import os", "|", "", "import os", Reason.REPEATS_PREFIX, id="the cell above"),
        pytest.param("def f():\n    a = 1", "|", "", "    return a", Reason.INDENTATION, id="a block of a cell above"),
    ],
)
def test_a_fill_of_a_cell_is_judged_by_the_cell_and_repeats_no_other_one(above, marked, below, fill, expected):
    head = f"{above}\n\n"
    tail = f"\n\n{below}"
    text = head + marked.replace("|", "") + tail
    offset = len(head) + marked.index("|")
    verdict = judge(
        fill.encode(),
        snapshot=Snapshot("file:///a.ipynb#1", 1, text, num_before=len(head), num_after=len(tail)),
        offset=offset,
        cursor=Cursor.at(text, offset),
        max_lines=None,
        score=-0.5,
        check_syntax=True,
    )
    assert expected in (verdict, getattr(verdict, "reason", None), getattr(verdict, "fault", None))


@pytest.mark.parametrize("below", ["y = )", ")"])
def test_a_rewrite_of_a_cell_is_judged_by_the_cell(below):
    text = f"def f(:\n\nx = 1\n\n{below}"
    after = len(f"\n\n{below}")
    snapshot = Snapshot("file:///a.ipynb#1", 1, text, num_before=9, num_after=after)
    rewrite = partial(judge_rewrite, snapshot=snapshot, start=9, end=14, score=-0.5, check_syntax=True)
    assert rewrite(b"x = 2") == Candidate("x = 2", -0.5)
    for broken in (b"x = = 2", b"x = (2"):
        assert rewrite(broken).reason is Reason.SYNTAX_ERROR


def test_candidates_are_ranked_without_duplicates():
    empty = Rejection(Reason.EMPTY)
    wrong = Rejection(Reason.SYNTAX_ERROR, "(")
    best = Candidate("a + 1\n", -1.0)
    results = [Candidate("b", -2.0), empty, best, wrong, Candidate(" a + 1", -2.5), Candidate("a+1", -3.0)]
    assert rank(results) == ((best, Candidate("b", -2.0)), (empty, wrong))


def test_the_most_confident_first_candidate_of_several_decoders_is_first():
    unsure = Candidate("a", -1.0, 0.2)
    first = Candidate("b", -2.0, 0.3)
    second = Candidate("c", -1.5, 0.9)
    assert merge([(unsure,), (first, second, Candidate("a ", -3.0, 0.1)), ()]) == (first, unsure, second)


def judged_rewrite(marked, answer, *, check_syntax=True, language="python", must_fix_errors=False):
    """`«` and `»` mark the selection."""
    before, selection, after = re.split("[«»]", marked)
    snapshot = Snapshot("file:///a.py", 1, before + selection + after, language)
    return judge_rewrite(
        answer if isinstance(answer, bytes) else answer.encode(),
        snapshot=snapshot,
        start=len(before),
        end=len(before + selection),
        score=-0.5,
        check_syntax=check_syntax,
        must_fix_errors=must_fix_errors,
    )


@pytest.mark.parametrize(
    ("marked", "answer", "text"),
    [
        ("x = «1»\n", "2", "2"),
        ("«x = 1\n»y = 2\n", "x = 3", "x = 3\n"),
        ("«x = 1»\ny = 2\n", "x = 3\n\n", "x = 3"),
        ("def f():\n«    return 1\n»", "return 2", "    return 2\n"),
        (
            "def f():\n«    a = 1\n    return a\n»",
            "a = 2\nif a:\n    return a",
            "    a = 2\n    if a:\n        return a\n",
        ),
        ("def f():\r\n«    return 1\r\n»x = 1\r\n", "    a = 2\n    return a\n", "    a = 2\r\n    return a\r\n"),
        ("def f():\n\tx = 1\n«\treturn 1\n»", "    return 2\n", "\treturn 2\n"),
    ],
)
def test_a_rewrite_has_the_indentation_and_line_ends_of_the_selection(marked, answer, text):
    assert judged_rewrite(marked, answer) == Candidate(text, -0.5)


@pytest.mark.parametrize(
    ("marked", "answer", "reason"),
    [
        ("x = «1»\n", "1", Reason.UNCHANGED),
        ("«x = 1\n»", "x = 1  \n\n", Reason.UNCHANGED),
        ("x = «1»\n", "(1", Reason.SYNTAX_ERROR),
        ("x = «1»\n", " \n", Reason.EMPTY),
        ("x = «1»\n", b"\xff\xfe", Reason.NOT_TEXT),
        ("x = «1»\n", "a\na\na\na\n", Reason.REPEATS_ITSELF),
    ],
)
def test_an_invalid_rewrite_is_rejected_with_its_reason(marked, answer, reason):
    assert judged_rewrite(marked, answer).reason is reason


def test_a_rewrite_adds_no_syntax_error_to_a_buffer_that_has_one():
    broken = "def f(:\n    pass\nx = «1»\n"
    assert isinstance(judged_rewrite(broken, "2"), Candidate)
    assert judged_rewrite(broken, "(2").reason is Reason.SYNTAX_ERROR
    assert judged_rewrite("x = «(1»\n", "(1)") == Candidate("(1)", -0.5)


@pytest.mark.parametrize(
    "options", [{"check_syntax": False}, {"language": "plaintext"}], ids=["off", "unknown language"]
)
def test_syntax_is_checked_in_known_languages_unless_turned_off(options):
    assert (
        judged("x = |\n", "1 2", **options) == judged_rewrite("x = «1»\n", "1 2", **options) == Candidate("1 2", -0.5)
    )


FUNCTION = "class C:\n    def f(self):\n«        return self.a * self.b\n»\n    def g(self):\n        pass\n"


@pytest.mark.parametrize(
    ("marked", "answer", "reason"),
    [
        pytest.param("«x = 1»\n", "print x", Reason.SYNTAX_ERROR, id="the syntax of Python 2"),
        pytest.param("def f():\n    «x = 1»\n    return x\n", "for", Reason.SYNTAX_ERROR, id="a keyword"),
        pytest.param("if a:\n    x = 1\n«y = 2\n»", "  y = 2", Reason.SYNTAX_ERROR, id="an indentation"),
        pytest.param("def f():\n    «x = 1»\n    return x\n", "if x:", Reason.SYNTAX_ERROR, id="a header"),
        pytest.param("«def f():\n»    return 1\n", "if x:", Reason.SYNTAX_ERROR, id="return outside of a function"),
        pytest.param("def f(x=«1», *, y): ...\n", "1, x", Reason.SYNTAX_ERROR, id="an argument twice"),
        pytest.param(
            "print x\n\n\ndef f():\n«    y = 1\n»", "y = yield = 2", Reason.SYNTAX_ERROR, id="invalid elsewhere"
        ),
        pytest.param(FUNCTION, '""""""', Reason.HOLLOW, id="an empty docstring for the only statement"),
        pytest.param(FUNCTION, '"""The product."""', Reason.HOLLOW, id="a docstring for the only statement"),
        pytest.param(FUNCTION, "pass", Reason.HOLLOW, id="pass for the only statement"),
        pytest.param("«x = 1\n»y = 2\n", "# x = 1", Reason.HOLLOW, id="a comment for a statement"),
        pytest.param("«x = 1\n»y = 2\n", "if x:\n    ...", Reason.HOLLOW, id="a block of dots"),
        pytest.param("«def f():\n    return 1\n»", "# Copyright (c) 2001 Who\nx = 1", Reason.LICENCE, id="a licence"),
    ],
)
def test_a_rewrite_that_breaks_or_empties_the_code_is_refused(marked, answer, reason):
    assert judged_rewrite(marked, answer).reason is reason


@pytest.mark.parametrize(
    ("marked", "answer"),
    [
        pytest.param("x = «'a'»\n", "'b'", id="a string for a string"),
        pytest.param("x = [\n«    a,\n»    c,\n]\n", "    'b',", id="a string in brackets"),
        pytest.param("def f():\n«    return 1\n»", "raise NotImplementedError", id="a statement"),
        pytest.param("«x = 1\n»", "class E(Exception):\n    pass", id="an empty class with a base"),
        pytest.param("«x = 1\n»", "try:\n    f()\nexcept OSError:\n    pass", id="a handler that does nothing"),
        pytest.param(
            "«# Copyright (c) 2001 Who\nx = 1\n»", "# Copyright (c) 2002 Who\nx = 2", id="a licence that is there"
        ),
        pytest.param("return «1»\n", "2", id="a buffer that parses and does not compile"),
        pytest.param("print x\ny = «1»\n", "2", id="a buffer that does not parse"),
        pytest.param("\ufeffx = «1»\r\n", "r'\\d'", id="a byte order mark and CRLF"),
    ],
)
def test_a_rewrite_that_keeps_the_code_valid_is_shown(marked, answer):
    assert isinstance(judged_rewrite(marked, answer), Candidate)


@given(st.text("ab1 ('\"):=,\n", max_size=25))
def test_python_that_parsed_parses_after_any_rewrite(answer):
    marked = "def f(a):\n    b = «(a + 1)»\n    return b\n"
    result = judged_rewrite(marked, answer)
    if isinstance(result, Candidate):
        ast.parse(re.sub("«.*»", lambda _: result.text, marked))


def test_a_fix_reduces_the_syntax_errors():
    assert judged_rewrite("x = «(1»\n", "(2", must_fix_errors=True).reason is Reason.SYNTAX_ERROR
    assert judged_rewrite("x = «(1»\n", "(2)", must_fix_errors=True) == Candidate("(2)", -0.5)
    assert judged_rewrite("x = «1»\n", "2", must_fix_errors=True) == Candidate("2", -0.5)  # no error to fix


# accepted by a grammar that recovers from errors, and not by CPython
BROKEN = [
    pytest.param("|\ny = 2\n", "print y", id="a statement of Python 2"),
    pytest.param("class A:\n    |\n\nb = 1\n", "def f(self):", id="a header without a body"),
    pytest.param(
        "def f(a):\n    return g(\n        a,\n        |\n    )\n", "b=1, a", id="an argument after one with a name"
    ),
    pytest.param("def f():\n    if a:\n        b\n    |\n", "  return 1", id="indentation of no block"),
]
SOUND = [
    pytest.param("def f(|\n", "x):", id="a header that the user began"),
    pytest.param("@prop|\n", "erty", id="a decorator that the user began"),
    pytest.param("tr|\n", "y:", id="try"),
    pytest.param("x = (\nbroken here\n\ny = |\n", "1 +", id="an error above"),
    pytest.param("f(\n    a,\n    |\n)\n", "b=1,", id="an argument"),
    pytest.param("d = {\n    'a': 1,\n    'b'|\n}\n", ": 2,", id="an element of a dictionary"),
    pytest.param("%matplotlib inline\ny = |\n", "1", id="a magic"),
    pytest.param("try:\n    a()\n|\n    pass\n", "except ValueError:", id="a handler"),
]


@pytest.mark.parametrize(("marked", "fill"), BROKEN)
def test_a_requested_fill_that_breaks_a_python_file_is_refused(marked, fill):
    assert isinstance(judged(marked, fill), Candidate)
    rejection = judged(marked, fill, must_parse=True)
    assert isinstance(rejection, Rejection)
    assert rejection.reason is Reason.SYNTAX_ERROR


@pytest.mark.parametrize(("marked", "fill"), SOUND)
def test_a_requested_fill_that_python_accepts_is_kept(marked, fill):
    assert judged(marked, fill, must_parse=True).text == fill


def test_of_a_requested_block_the_lines_that_parse_are_kept():
    marked = "def f():\n\t|\n"
    fill = "a = 1\n    b = 2\n    print a"
    assert judged(marked, fill).text.endswith("print a")
    assert judged(marked, fill, must_parse=True).text == "a = 1\n\tb = 2"


@pytest.mark.parametrize("language", ["json", "jsonc"])
@pytest.mark.parametrize(
    ("marked", "fill", "text"),
    [
        pytest.param("|", '{"b": 1', '{"b": 1}', id="an empty file"),
        pytest.param('{"a": 2, |}', '"b": {"c": 1', '"b": {"c": 1}', id="inside an object"),
        pytest.param(
            '[\n  {"a": 1},\n  |\n]\n', '{\n    "b": [1, 2', '{\n    "b": [1, 2]\n  }', id="an element of a list"
        ),
        pytest.param('{"a": |\n', '{"b": 1', '{"b": 1}', id="what the user opened stays open"),
        pytest.param('{\n  "a": |\n    1\n  ]\n}\n', "[", "[", id="the lines below close it"),
    ],
)
def test_json_that_nothing_closes_is_closed(language, marked, fill, text):
    assert judged(marked, fill, language=language).text == text


@pytest.mark.parametrize(
    ("language", "marked", "fill"),
    [
        pytest.param("html", "|", "<span>text</b>", id="another name"),
        pytest.param("html", "<i>|\n", '<span class="a > b"><b>x</b>text</i>', id="around another element"),
        pytest.param("html", "<b>|\n", "text</i>", id="opened above"),
        pytest.param("xml", "|", "<li>text</ul>", id="XML"),
        pytest.param("vue", "|", "<a>text</b>", id="Vue"),
        pytest.param("javascriptreact", "const a = |\n", "<span>text</b>", id="JSX"),
        pytest.param("typescriptreact", "const a = |\n", "<span>text</b>", id="TSX"),
    ],
)
def test_an_end_tag_of_another_element_is_refused(language, marked, fill):
    assert judged(marked, fill, language=language) == Rejection(Reason.SYNTAX_ERROR, fill)


@pytest.mark.parametrize(
    ("language", "marked", "fill"),
    [
        pytest.param("html", "<ul>|\n", "<li>a<li>b</ul>", id="end tags that HTML does not need"),
        pytest.param("html", "<p>|\n", "a<br>b<img src='c'></p>", id="elements without an end tag"),
        pytest.param("html", "<div><b>|\n", "x</b></div>", id="opened above"),
        pytest.param("html", "{% if a %}<div>{% else %}<p>{% endif %}|\n", "x</div>", id="a template"),
        pytest.param("html", "<DIV>|\n", "<b>x</B></div>", id="other letters"),
        pytest.param("typescriptreact", "const a = <div>{|\n", "useState<string>(b)}</div>;", id="a type"),
    ],
)
def test_an_end_tag_that_may_be_right_is_kept(language, marked, fill):
    assert judged(marked, fill, language=language).text == fill
