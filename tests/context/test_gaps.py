import pytest

from dg_lsp.context import gaps
from dg_lsp.context.document import Snapshot
from dg_lsp.context.gaps import find_gaps


def gaps_of(text, language="python", start=0, end=None):
    """Placeholders in order; an empty one as what stands before it."""
    placeholders = find_gaps(Snapshot("file:///a", text, language), start, len(text) if end is None else end)
    return [text[gap.start : gap.end].strip() or text[: gap.start][-2:] for gap in placeholders]


@pytest.mark.parametrize(
    ("text", "placeholders"),
    [
        ("def f():\n    pass\n", ["pass"]),
        ("x = ...\ny = f(..., 1)\nreturn ...\n", ["...", "...", "..."]),
        ("def é(): ...\nx = 'ö'\npass\n", ["...", "pass"]),
        ("x: tuple[int, ...] = a[..., 0]\n", []),
        ("x: Callable[[...], int]\ny = [[...]]\n", ["..."]),
        ("f(, b)\n", ["f("]),
        ("f(a, , b)\n", [", "]),
        ("f(key=, b=2)\n", ["y="]),
        ("f( )\ng(a, )\n", ["f(", ", "]),
        ("f()\ng(a,\n)\nt = (a, )\nx == y\n", []),
        ("s = 'f(, b) ... pass'\n# f(, b) ...\n", []),
        ("# TODO: add\nx = 1  # TODO later\n# done\n", ["# TODO: add"]),
        ("if x:\r\n    # TODO: add\r\n    pass\r\n", ["# TODO: add\r\n    pass"]),
        ("# TODO: one\n# TODO: two\n\n...\n", ["# TODO: one\n# TODO: two", "..."]),
    ],
)
def test_placeholders_of_python_are_found(text, placeholders):
    assert gaps_of(text) == placeholders


@pytest.mark.parametrize(
    ("text", "language"),
    [("while IFS=, read -r a; do\n  b\ndone\n", "shellscript"), ("const [a, , b] = c;\n", "javascript")],
)
def test_an_element_that_may_be_left_out_is_no_placeholder(text, language):
    assert gaps_of(text, language) == []


def test_only_placeholders_inside_the_selection_count():
    text = "a = ...\nb = ...\nc = ...\n"
    assert len(gaps_of(text)) == 3
    assert len(gaps_of(text, start=8, end=15)) == 1
    assert gaps_of(text, start=8, end=14) == []
    assert gaps_of("f(, b)\n", start=2, end=2) == ["f("]


def test_a_language_without_a_grammar_has_lines_of_dots_and_todo_lines():
    text = "int f() {\r\n  // TODO: add\r\n  ...\r\n  pass; x(, y)\r\n  return 1; // TODO\r\n\r\n  ...\r\n}\r\n"
    assert gaps_of(text, "unknown") == ["// TODO: add\r\n  ...", "..."]


def test_a_comment_is_what_the_model_sees_before_the_fill():
    text = "def f():\r\n\t# TODO: add\r\n\tpass\r\n"
    [gap] = find_gaps(Snapshot("file:///a.py", text), 0, len(text))
    assert gap.lead(text) == "# TODO: add\r\n\t"


def test_a_text_that_is_too_long_to_parse_has_lines_only(monkeypatch):
    monkeypatch.setattr(gaps, "LimitedParser", None)
    minified = "f(...a);" * 60_000
    assert gaps_of(minified, "javascript") == []
    assert gaps_of(f"{minified}\n// TODO: add\n", "javascript") == ["// TODO: add"]


@pytest.mark.timeout(60)
def test_a_text_that_takes_too_long_to_parse_has_lines_only():
    assert gaps_of("f(...)\n...\n" + "%w(" * 50_000, language="rust") == ["..."]
