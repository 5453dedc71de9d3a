import pytest

from dg_lsp.postprocess.text_edits import Balance, balance


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("", Balance("", "", 0), id="nothing"),
        pytest.param("f([x]{})", Balance("", "", 0), id="all closed"),
        pytest.param("f([{", Balance("}])", "", 0), id="closers come innermost first"),
        pytest.param("a)]", Balance("", "", 2), id="closers without openers"),
        pytest.param("f(]", Balance(")", "", 1), id="a closer of another kind"),
        pytest.param("f('(')", Balance("", "", 0), id="brackets in strings are text"),
        pytest.param("f('", Balance(")", "'", 0), id="an open string"),
        pytest.param("'it\\'s", Balance("", "'", 0), id="an escaped quote"),
        pytest.param("'a\"b'", Balance("", "", 0), id="the other quote"),
        pytest.param("'a\nf(", Balance(")", "", 1), id="a line end breaks a string off"),
        pytest.param('"""a\n"b" (', Balance("", '"""', 0), id="but not one of three quotes"),
        pytest.param('"""a"""(', Balance(")", "", 0), id="which three quotes end"),
        pytest.param('"a"""(', Balance(")", "", 0), id="the end of a string and an empty one"),
        pytest.param('""(', Balance(")", "", 0), id="an empty string"),
        pytest.param("# it's (\n(", Balance(")", "", 0), id="comments are passed over to the line's end"),
        pytest.param("( # (", Balance(")", "", 0), id="or to the text's"),
        pytest.param("'#'(", Balance(")", "", 0), id="there are none in strings"),
    ],
)
def test_balance(text, expected):
    assert balance(text, "#") == expected


def test_without_a_comment_sign_there_are_no_comments():
    assert balance("# (") == Balance(")", "", 0)


def test_num_unmatched_counts_all_kinds():
    assert balance("a) f(['").num_unmatched == 4
