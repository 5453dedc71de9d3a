"""Fills beside the code around them: syntax, wrong partners, habits of a file, and parts of long files."""

import pytest

from dg_lsp.postprocess.validate import Candidate, Reason

from .conftest import cases, judged


@pytest.mark.parametrize(("language", "marked", "fill", "kept"), cases("repeated_ends", "fill", "kept"))
def test_a_fill_ends_where_an_editor_has_closed_what_it_closes_again(language, marked, fill, kept):
    assert judged(marked, fill, language) == Candidate(kept, -0.5)


@pytest.mark.parametrize(
    ("language", "marked", "fill", "kept"), cases("python", "fill", "kept") + cases("languages", "fill", "kept")
)
def test_a_fill_is_kept_as_far_as_its_language_and_its_file_allow_it(language, marked, fill, kept):
    result = judged(marked, fill, language)
    if kept is None:
        assert result.reason is Reason.SYNTAX_ERROR
    else:
        assert result.text == kept


METHODS = "".join(f"    int f{i}(int a) {{\n        return a + {i};\n    }}\n\n" for i in range(300))
CLASS = f"class A {{\n{METHODS}    int g() {{\n        ¦\n    }}\n\n{METHODS}}}\n"
ITEMS = '    {"b": 1},\n' * 900
ARRAY = f'{{\n  "a": [\n{ITEMS}    ¦\n{ITEMS}    {{}}\n  ]\n}}\n'
DEFS = "  def f\n    1\n  end\n\n" * 500
MODULE = f"module A\n{DEFS}  def g\n    ¦\n  end\n\n{DEFS}end\n"
NAMESPACE = "namespace a {\n\nint f() {\n  return 1;\n}\n\nint g() {\n  ¦\n}\n\n}  // namespace a\n"


@pytest.mark.parametrize(
    ("language", "marked"),
    [
        pytest.param("plaintext", "x = ¦\n", id="unknown language"),
        pytest.param("python", "prose, it's (\n" * 1000 + "¦\n" + "more prose\n" * 1000, id="far from any landmark"),
        pytest.param("python", "x = [" + "1, " * 1_000_000 + "¦]", id="giant line"),
    ],
)
def test_text_that_cannot_be_parsed_is_not_checked(language, marked):
    assert judged(marked, "1 2", language) == Candidate("1 2", -0.5)


@pytest.mark.parametrize(
    ("language", "marked", "fill", "is_kept"),
    [
        ("java", CLASS, "return 1;", True),
        ("java", CLASS, "return 1 2;", False),
        ("java", f"¦\n{METHODS}}}\n", "class A {", True),
        ("json", ARRAY, '{"c": 2},', True),
        ("json", ARRAY, '{"c" 2},', False),
        ("json", ARRAY, '"a": [1, 2}', False),
        ("ruby", MODULE, "x = 1", True),
        ("ruby", MODULE, "x = = 1", False),
        ("cpp", NAMESPACE, "return f();", True),
        ("cpp", NAMESPACE, "return f(;", False),
    ],
)
def test_a_part_of_a_long_file_is_judged_as_the_whole_would_be(language, marked, fill, is_kept):
    result = judged(marked, fill, language)
    assert (result == Candidate(fill, -0.5)) == is_kept
