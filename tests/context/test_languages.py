import pytest

from dg_lsp.context.languages import LANGUAGES, PLAIN, grammar_of, language_of, opening_of


def opening(marked, language="python"):
    return opening_of(marked.replace("|", "", 1), marked.index("|"), language)


@pytest.mark.parametrize(
    ("marked", "expected"),
    [
        ("def f():|\n", "\n    "),
        ("def f():|", "\n    "),
        ("class A(B):|\n\n\nx = 1\n", "\n    "),
        ("if x:\n  y()\nfor a in b:|\n", "\n  "),
        ("def f():\n    if x == {1: 2}:|\n    return 1\n", "\n        "),
        ("def f():\r\n    pass\r\nwhile True:  # ever|\r\n", "\r\n    "),
        ("def f():\n\tif x:|\n", "\n\t\t"),
        ("try:|   \n", "\n    "),
        ("async def f() -> int:|\n", "\n    "),
    ],
)
def test_an_opened_block_begins_on_the_next_line(marked, expected):
    assert opening(marked) == expected


@pytest.mark.parametrize(
    "marked",
    [
        "def f():|\n    return 1\n",  # has a body
        "def f():|\n\n    return 1\n",
        "def f()|:\n",  # text follows the cursor
        "x: int = {1:|\n",
        "print(a[1:|\n",
        "lambda x:|\n",
        "# if this:|\n",
        "x = 1|\n",
        "    |\n",
    ],
)
def test_no_block_begins_elsewhere(marked):
    assert opening(marked) == ""


def test_other_languages_have_no_block_headers():
    assert opening("if x:|\n", "ruby") == ""


def test_unknown_languages_are_plain_text_and_every_grammar_loads():
    assert language_of("brainfuck") is PLAIN
    assert all(grammar_of(language.grammar_module) for language in LANGUAGES.values())
