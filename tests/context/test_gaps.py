import pytest

from dg_lsp.context import gaps
from dg_lsp.context.document import Snapshot
from dg_lsp.context.gaps import find_gaps


def gaps_of(text, language="python", start=0, end=None):
    """Placeholders in order; an empty one as what stands before it."""
    placeholders = find_gaps(Snapshot("file:///a", text, language), start, len(text) if end is None else end)
    return [text[gap.start : gap.end].strip() or text[: gap.start][-2:] for gap in placeholders]


@pytest.mark.parametrize(
    ("text", "placeholders", "language"),
    [
        ("def f():\n    pass\n", ["pass"], "python"),
        ("x = ...\ny = f(..., 1)\nreturn ...\n", ["...", "...", "..."], "python"),
        ("def é(): ...\nx = 'ö'\npass\n", ["...", "pass"], "python"),
        ("x: tuple[int, ...] = a[..., 0]\n", [], "python"),
        ("x: Callable[[...], int]\ny = [[...]]\n", ["..."], "python"),
        ("f(, b)\n", ["f("], "python"),
        ("f(a, , b)\n", [", "], "python"),
        ("f(key=, b=2)\n", ["y="], "python"),
        ("f( )\ng(a, )\n", ["f(", ", "], "python"),
        ("f()\ng(a,\n)\nt = (a, )\nx == y\n", [], "python"),
        ("s = 'f(, b) ... pass'\n# f(, b) ...\n", [], "python"),
        ("# TODO: add\nx = 1  # TODO later\n# done\n", ["# TODO: add"], "python"),
        ("if x:\r\n    # TODO: add\r\n    pass\r\n", ["# TODO: add\r\n    pass"], "python"),
        ("# TODO: add\n#   both\n# and more\npass\n", ["# TODO: add\n#   both\n# and more\npass"], "python"),
        ("// TODO: add\r\n//   both\r\nint a;\n", ["// TODO: add\r\n//   both"], "go"),
        ("# TODO: one\n# TODO: two\n\n...\n", ["# TODO: one\n# TODO: two", "..."], "python"),
        # elements that may be left out
        ("while IFS=, read -r a; do\n  b\ndone\n", [], "shellscript"),
        ("const [a, , b] = c;\n", [], "javascript"),
        # without a grammar, lines only
        ("int f() {\r\n  // TODO: add\r\n  ...\r\n  pass; x(, y)\r\n", ["// TODO: add\r\n  ..."], "unknown"),
        ("  return 1; // TODO\r\n\r\n  ...\r\n}\r\n", ["..."], "unknown"),
    ],
)
def test_placeholders_are_found_as_the_language_has_them(text, placeholders, language):
    assert gaps_of(text, language) == placeholders


def test_only_placeholders_inside_the_selection_count():
    text = "a = ...\nb = ...\nc = ...\n"
    assert len(gaps_of(text)) == 3
    assert len(gaps_of(text, start=8, end=15)) == 1
    assert gaps_of(text, start=8, end=14) == []
    assert gaps_of("f(, b)\n", start=2, end=2) == ["f("]


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
