import ast
import re
from functools import partial
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dg_lsp.context.document import LINE_END, Cursor, Snapshot, TextStyle
from dg_lsp.postprocess.validate import Candidate, Reason, Rejection, judge_rewrite, rank, unbound_names

from .conftest import cases, judged


def verdict_of(result):
    """The text of a candidate without a fault, or the reason of a rejection."""
    if isinstance(result, Rejection):
        return result.reason
    assert result == Candidate(result.text, -0.5)
    return result.text


@pytest.mark.parametrize(
    ("marked", "fill", "verdict"),
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
        pytest.param("|\n", "a\nb\nb\nb\nb\nc", "a\nb", id="three equal lines and all lines after them"),
        pytest.param("|\n", "a\na\nb", "a\na\nb", id="two equal lines"),
        pytest.param("|\n", "a\n\n\n\nb", "a\n\n\n\nb", id="blank lines"),
        pytest.param("x = [[[\n1\n|\n", "]\n]\n]", "]\n]\n]", id="lines of brackets"),
        pytest.param("x = |\n", "[0, 0, 0, 0, 0, 0, 0, 0]", "[0, 0, 0, 0, 0, 0, 0, 0]", id="equal numbers"),
        pytest.param("x = 1\n|\n", "# -------------------", "# -------------------", id="a ruler in a comment"),
        pytest.param("x = |\n", "a + b + c + d + e + f", "a + b + c + d + e + f", id="a sum of different names"),
        pytest.param("|\n", 'p("%4s %6s %6s %6s %6s %6s")', 'p("%4s %6s %6s %6s %6s %6s")', id="columns of a format"),
        pytest.param("|", "", Reason.EMPTY, id="empty"),
        pytest.param("|", " \n\t\n", Reason.EMPTY, id="blanks"),
        pytest.param("x = 1|\n", "\n", Reason.EMPTY, id="a line end after a full line"),
        pytest.param("|", "a\0", Reason.NOT_TEXT, id="NUL"),
        pytest.param("f(|)\n", ")", Reason.REPEATS_SUFFIX, id="the bracket that follows"),
        pytest.param("|\nreturn\n", "return", Reason.REPEATS_SUFFIX, id="the line that follows"),
        pytest.param("import os\n|\n", "import os", Reason.REPEATS_PREFIX, id="the line before"),
        pytest.param("x = |\n", "1 2", Reason.SYNTAX_ERROR, id="nonsense"),
        pytest.param("|\n", "f(width" + ", width" * 5, Reason.REPEATS_ITSELF, id="one word six times"),
        pytest.param("|\n", "x = " + "b._ss(" * 6, Reason.REPEATS_ITSELF, id="nested calls"),
        pytest.param("|\n    return x\n", "def f(x):", "def f(x):", id="a header above a block"),
        pytest.param("|\n    return x\n", "x = 1", Reason.INDENTATION, id="no header above a block"),
        pytest.param(
            "|\n        a()\n    b()\n", "    if x:\n        a()\n    c()", "    if x:", id="up to the line below"
        ),
        pytest.param(
            "def f():\n  for x in y:\n|\n    b()\n  c()\n",
            "    a()\n  c()\nd()",
            "    a()",
            id="up to a line further below",
        ),
        pytest.param("if |\n    f()\n", "x:  # why: not", "x:  # why: not", id="a header with a comment"),
        pytest.param("if |\n    f()\n", "x == 1", Reason.INDENTATION, id="no colon above a block"),
        pytest.param("f(|\n    b)\n", "a,", "a,", id="inside brackets"),
        pytest.param("x = |\n    b)\n", "f(a,", "f(a,", id="after an opened bracket"),
        pytest.param("x = |\n    2\n", "1 + \\", "1 + \\", id="after a backslash"),
        pytest.param("def f():\n    |\n    return 1\n", "x = 1", "x = 1", id="the next line is as deep"),
        pytest.param("def f():\n    if x:\n        |\n    return 1\n", "y()", "y()", id="the next line is less deep"),
        pytest.param('def f():\n    """|\n        deep\n    """\n', "words", "words", id="inside a string"),
    ],
)
def test_a_fill_becomes_a_candidate_or_is_rejected_with_its_reason(marked, fill, verdict):
    assert verdict_of(judged(marked, fill)) == verdict


def test_the_indentation_below_means_nothing_in_other_languages():
    assert judged("|\n    return x\n", "x = 1", "plaintext") == Candidate("x = 1", -0.5)


@pytest.mark.parametrize(
    ("marked", "fill", "reason"),
    [
        ("def f(x):\n    |\n", "if x:", Reason.HOLLOW),
        ("def f(x):\n    |\n", '""""""', Reason.HOLLOW),
        ("def f(x):\n    x = x + |\n    x = |\n".replace("|", "1", 1), "x", Reason.NO_EFFECT),
        ("class C:\n    def f(self):\n        self.a = |\n", "self.a  # why", Reason.NO_EFFECT),
        ("x = f(|\n", ")", Reason.CLOSERS),
        ("# The length of |\n", "the number of items in the number of items", Reason.REPEATS_ITSELF),
        ("# a |\n", "list list list", Reason.REPEATS_ITSELF),
        ("def f(x):\n    |\n", "total += value\n    total += value", Reason.REPEATS_ITSELF),
        ("def f(x):\n    |\n", "\n    ".join(["first = 1", "other = 2"] * 2), Reason.REPEATS_ITSELF),
        ("|\n", "# Copyright (c) 2001 Somebody", Reason.LICENCE),
        # fills that only look alike
        ("def f(x):\n    |\n        y()\n", "if x:", None),
        ("def f(x):\n    y()\n    |\n", "if x:", None),
        ("def f(x):\n    |\n", '"""Twice."""', None),
        ("x = f(\n    x=|\n)\n", "x", None),
        ("x = |\n", "x + 1", None),
        ('def f():\n    """Words\n    |\n', '"""', None),
        ("x = f(a|\n", ", b)", None),
        ("x = |\n", "a is not None and b is not None", None),
        ("def f(x):\n    |\n", "self.up()\n    x()\n    self.up()", None),
        ("x = [\n    |\n]\n", "0, 0,\n    0, 0,", None),
        ("# Copyright (c) 2001 Somebody\n|\n", "# All rights reserved.", None),
    ],
)
def test_a_fill_with_a_fault_is_hidden_unless_it_is_requested(marked, fill, reason):
    assert judged(marked, fill).fault is reason


def test_a_block_ends_before_the_next_function_unless_more_lines_are_requested():
    marked = "def f():\n    |\n"
    fill = "return 1\n\n\ndef g():\n    return 2"
    assert judged(marked, fill) == Candidate("return 1", -0.5)
    assert judged(marked, fill, max_lines=9) == Candidate(fill, -0.5)
    assert judged("def f():|\n", "\n    return 1", max_lines=5) == Candidate("\n    return 1", -0.5)
    prose = "an item\n\nA paragraph"
    assert judged("  |\n", prose, "plaintext") == Candidate(prose, -0.5)


buffers = st.text("ab1 ('\"):#\t\r\n\x0c\0é😋", max_size=60)
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
    cursor = Cursor.at(text, offset)
    assert len(set(line_ends)) <= 1
    assert len(line_ends) < (max_lines or (99 if cursor.is_blank_line else 1))


@pytest.mark.parametrize(
    ("above", "marked", "below", "fill", "verdict"),
    [
        pytest.param("def f(:", "x = [|", "y = )", "1]", "1]", id="errors in other cells"),
        pytest.param("x = 1", "y = |", ")", "f(1", "f(1)", id="a bracket of another cell"),
        pytest.param("", "|", "b = a\nprint(b)", "a = 1\nb = a", "a = 1", id="the next cell"),
        pytest.param("import os", "|", "", "import os", Reason.REPEATS_PREFIX, id="the cell above"),
    ],
)
def test_a_fill_of_a_cell_is_judged_by_the_cell_and_repeats_no_other_one(above, marked, below, fill, verdict):
    head = f"{above}\n\n"
    tail = f"\n\n{below}"
    assert verdict_of(judged(head + marked + tail, fill, num_before=len(head), num_after=len(tail))) == verdict


@pytest.mark.parametrize("below", ["y = )", ")"])
def test_a_rewrite_of_a_cell_is_judged_by_the_cell(below):
    text = f"def f(:\n\nx = 1\n\n{below}"
    after = len(f"\n\n{below}")
    snapshot = Snapshot("file:///a.ipynb#1", text, num_before=9, num_after=after)
    rewrite = partial(judge_rewrite, snapshot=snapshot, start=9, end=14, score=-0.5)
    assert rewrite(b"x = 2") == Candidate("x = 2", -0.5)
    for broken in (b"x = = 2", b"x = (2"):
        assert rewrite(broken).reason is Reason.SYNTAX_ERROR


def test_candidates_are_ranked_without_duplicates():
    empty = Rejection(Reason.EMPTY)
    wrong = Rejection(Reason.SYNTAX_ERROR, "(")
    best = Candidate("a + 1\n", -1.0, 0.3)
    second = Candidate("b", -1.0, 0.2)
    results = [second, empty, best, wrong, Candidate(" a + 1", -2.5, 0.25), Candidate("a+1", -3.0, 0.1)]
    assert rank(results) == ((best, second), (empty, wrong))


def judged_rewrite(marked, answer, *, language="python", must_fix_errors=False):
    """`«` and `»` mark the selection."""
    before, selection, after = re.split("[«»]", marked)
    snapshot = Snapshot("file:///a.py", before + selection + after, language)
    return judge_rewrite(
        answer if isinstance(answer, bytes) else answer.encode(),
        snapshot=snapshot,
        start=len(before),
        end=len(before + selection),
        score=-0.5,
        must_fix_errors=must_fix_errors,
    )


@pytest.mark.parametrize(
    ("marked", "answer", "verdict"),
    [
        ("x = «1»\n", "2", "2"),
        ("\ufeffx = «1»\r\n", "r'\\d'", "r'\\d'"),
        ("«x = 1\n»y = 2\n", "x = 3", "x = 3\n"),
        ("«x = 1»\ny = 2\n", "x = 3\n\n", "x = 3"),
        ("def f():\n«    return 1\n»", "return 2", "    return 2\n"),
        ("def f():\n«    a()\n    b()\n»", "c()\nif d:\n    e()", "    c()\n    if d:\n        e()\n"),
        ("def f():\r\n«    return 1\r\n»x = 1\r\n", "    a = 2\n    return a\n", "    a = 2\r\n    return a\r\n"),
        ("def f():\n\tx = 1\n«\treturn 1\n»", "    return 2\n", "\treturn 2\n"),
        ("x = «1»\n", "1", Reason.UNCHANGED),
        ("«x = 1\n»", "x = 1  \n\n", Reason.UNCHANGED),
        ("x = «1»\n", "(1", Reason.SYNTAX_ERROR),
        ("x = «1»\n", " \n", Reason.EMPTY),
        ("x = «1»\n", b"\xff\xfe", Reason.NOT_TEXT),
        ("x = «1»\n", "a\na\na\na\n", Reason.REPEATS_ITSELF),
        # the buffer has a syntax error
        ("def f(:\n    pass\nx = «1»\n", "2", "2"),
        ("def f(:\n    pass\nx = «1»\n", "(2", Reason.SYNTAX_ERROR),
        ("x = «(1»\n", "(1)", "(1)"),
    ],
)
def test_a_rewrite_has_the_indentation_and_line_ends_of_the_selection_or_a_reason(marked, answer, verdict):
    assert verdict_of(judged_rewrite(marked, answer)) == verdict


GO = "func f{}() string {{\n\tx := 1\t// one\n\treturn `\n    indented\n\tkey\tvalue\n`\n}}\n"
PYTHON = 'a = {}\ns = """one  \n\ttwo\tthree\n"""\n'


@pytest.mark.parametrize(
    ("language", "text"),
    [
        pytest.param("go", GO, id="blanks and tabs of a raw string"),
        pytest.param("markdown", "first line  \nsecond line\nthe {}\n", id="a hard break"),
        pytest.param("python", PYTHON, id="blanks and tabs of a string"),
        pytest.param("python", "a = {}\r\nb = 2\nc = 3\r\n", id="mixed line ends"),
        pytest.param("python", "a = {}\n\x0c\nb = 2\n", id="a form feed"),
    ],
)
def test_a_rewrite_keeps_the_lines_that_it_does_not_change(language, text):
    answer = TextStyle().to_model(text.format("22"))
    assert judged_rewrite(f"«{text.format('1')}»", answer, language=language) == Candidate(text.format("22"), -0.5)


@pytest.mark.parametrize(("verdict", "marked", "answer"), [*cases("rewrites", "answer")])
def test_a_rewrite_is_shown_if_it_neither_breaks_nor_empties_the_code(verdict, marked, answer):
    result = judged_rewrite(marked, answer)
    assert ("kept" if isinstance(result, Candidate) else result.reason) == verdict


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


@pytest.mark.parametrize(("verdict", "marked", "fill"), [*cases("requested", "fill")])
def test_a_requested_fill_is_kept_if_cpython_accepts_it(verdict, marked, fill):
    """The grammar, which recovers from errors, accepts all of them."""
    assert isinstance(judged(marked, fill), Candidate)
    result = judged(marked, fill, must_parse=True)
    if verdict == "kept":
        assert result.text == fill
    else:
        assert isinstance(result, Rejection)
        assert result.reason is Reason.SYNTAX_ERROR


def test_of_a_requested_block_the_lines_that_parse_are_kept():
    marked = "def f():\n\t|\n"
    fill = "a = 1\n    b = 2\n    print a"
    assert judged(marked, fill).text.endswith("print a")
    assert judged(marked, fill, must_parse=True).text == "a = 1\n\tb = 2"


BOUND = {
    "builtin and module": "import os as system\nprint(len(system.sep), __name__, __file__)",
    "module level, below": "def f():\n    return late\nlate = 1",
    "module level, in a branch": "try:\n    import a.b\nexcept ImportError as e:\n    a = e",
    "enclosing function": "def f(a, *b, c=1, **d):\n    def g():\n        return a, b, c, d, f, g\n    return g",
    "own function, from below": "def f():\n    print(x)\n    x = 1",
    "comprehension": "def f(rows):\n    return {k: [c for c in v] for k, v in rows if k}",
    "walrus, with, loop, unpacking": "def f(a):\n with a as (b, *c):\n  for d in b: (e := d)\n return b, c, d, e",
    "match": "def f(a):\n    match a:\n        case {'k': v, **rest} | [v, *rest]:\n            return v, rest",
    "global of another function": "def f():\n    global made\n    made = 1\ndef g():\n    return made",
    "nonlocal": "def f():\n    n = 0\n    def g():\n        nonlocal n\n        n += 1\n    return g",
    "class": "class C:\n  a = 1\n  b = a\n  __qualname__\n  def f(self): return __class__, super().f()",
    "lambda and decorator": "def d(f): return f\n@d\ndef g(): return lambda x, y=1: x + y",
    "attribute and keyword": "import os\nos.nowhere.at_all(nothing=1, print=2)",
    "annotated only": "x: int\ndef f():\n    return x",
    "star import": "from os import *\nprint(getcwd())",
    "exec": "exec('a = 1')\nprint(a)",
    "globals": "globals().update(a=1)\nprint(a)",
    "no Python": "print a",
}
UNBOUND = {
    "anywhere": "def f():\n    return nothing.at_all",
    "local of another function": "def g():\n    nothing = 1\ndef f():\n    return nothing",
    "parameter outside": "def g(nothing): ...\nnothing()",
    "comprehension outside": "[nothing for nothing in ()]\nnothing",
    "class body, from a method": "class C:\n    nothing = 1\n    def f(self):\n        return nothing",
    "global that nothing assigns": "def f():\n    global nothing\n    return nothing",
}


@pytest.mark.parametrize("text", BOUND.values(), ids=BOUND)
def test_a_name_that_something_may_bind_is_known(text):
    assert unbound_names(text) == frozenset()


@pytest.mark.parametrize("text", UNBOUND.values(), ids=UNBOUND)
def test_a_name_that_nothing_binds_in_sight_is_unknown(text):
    assert unbound_names(text) == {"nothing"}


@pytest.mark.parametrize(
    ("tokens", "beginning"),
    [
        pytest.param({"total": 0.9, " +": 0.8, " tax": 0.1}, "total +", id="up to the first improbable word"),
        pytest.param({"tot": 0.9, "al": 0.1}, None, id="a part of a word"),
        pytest.param({"print": 0.9, "(": 0.8, "name": 0.1}, "print", id="not with an opening bracket at its end"),
        pytest.param({"name": 0.9, " =": 0.8, " '": 0.7, "x": 0.1}, "name =", id="nor with an opening quote"),
        pytest.param({"run": 0.9, "(name": 0.8, ".x": 0.1}, "run(name", id="a bracket with an argument"),
        pytest.param({"x": 0.9, " =": 0.8, " y": 0.1}, None, id="too short"),
        pytest.param({"\n": 0.9, "total": 0.8, " +": 0.1}, None, id="on the line below"),
        pytest.param({"total": 0.3, "!": 0.2}, None, id="improbable from the first word on"),
    ],
)
def test_beginning_of_an_improbable_line(tokens, beginning):
    text = "".join(tokens)
    prefixes = tuple(zip(accumulate(map(len, tokens)), tokens.values(), strict=True))
    begun = Candidate(text, -1.0, confidence=0.05, prefixes=prefixes).beginning(0.08)
    assert (begun and begun.text) == beginning
