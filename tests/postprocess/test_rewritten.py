import pytest

from dg_lsp.context.document import Snapshot
from dg_lsp.postprocess.validate import Candidate, Reason, judge_rewrite


def judged(marked, answer, *, check_syntax=True, language="python", must_fix_errors=False):
    """`«` and `»` mark the stretch."""
    start, end = marked.index("«"), marked.index("»") - 1
    text = marked.replace("«", "").replace("»", "")
    snapshot = Snapshot("file:///a.py", 1, text, language)
    raw = answer if isinstance(answer, bytes) else answer.encode()
    return judge_rewrite(
        raw,
        snapshot=snapshot,
        start=start,
        end=end,
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
def test_the_answer_takes_the_place_and_its_manners(marked, answer, text):
    assert judged(marked, answer) == Candidate(text, -0.5)


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
def test_what_is_not_worth_showing(marked, answer, reason):
    assert judged(marked, answer).reason is reason


def test_a_buffer_that_was_broken_may_stay_as_broken_but_not_more():
    broken = "def f(:\n    pass\nx = «1»\n"
    assert isinstance(judged(broken, "2"), Candidate)
    assert judged(broken, "(2").reason is Reason.SYNTAX_ERROR
    assert judged("x = «(1»\n", "(1)") == Candidate("(1)", -0.5)


def test_syntax_is_not_asked_about_where_nobody_knows_it():
    assert judged("x = «1»\n", "(1", check_syntax=False) == Candidate("(1", -0.5)
    assert judged("x = «1»\n", "(1", language="plaintext") == Candidate("(1", -0.5)


def test_what_is_to_be_mended_must_parse_better():
    assert judged("x = «(1»\n", "(2", must_fix_errors=True).reason is Reason.SYNTAX_ERROR
    assert judged("x = «(1»\n", "(2)", must_fix_errors=True) == Candidate("(2)", -0.5)
    assert judged("x = «1»\n", "2", must_fix_errors=True) == Candidate("2", -0.5)  # nothing to mend
