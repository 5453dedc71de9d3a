"""Fills in other languages than Python: wrong partners, habits of a file, and parts of long files."""

import pytest

from dg_lsp.postprocess.validate import Candidate, Reason

from .conftest import judged


@pytest.mark.parametrize(
    ("language", "marked", "fill"),
    [
        ("html", "<p>\n  ¦\n</p>\n", '<a href="x>text</a>'),
        ("html", "<p>\n  ¦\n</p>\n", "<b text</b>"),
        ("html", "<p>\n  ¦\n</p>\n", "text/b>"),
        ("html", "<p¦\n", '"class">'),
        # the text around the fill has an error of its own, or its beginning is far away
        ("javascript", "f(= 1);\n¦\n", 'const a = f("b);'),
        ("java", "f(= 1);\n¦\n", "int a = b[1);"),
        ("json", "{\n" + '  "k": 1,\n' * 1000 + "  ¦\n}\n", '"a": [1, 2}'),
    ],
)
def test_tags_brackets_and_quotes_with_a_wrong_partner_are_refused(language, marked, fill):
    assert judged(marked, fill, language).reason is Reason.SYNTAX_ERROR


@pytest.mark.parametrize(
    ("language", "marked", "fill"),
    [
        ("html", "<script>\n¦\n</script>\n", "if (a<b && c>d) e();"),
        ("html", "<a\n  ¦\n>\n", 'href="#"'),
        ("html", "<td>a</td>\n<td>a</td>\n¦\n<td>b</td>\n", "<td>a</td>"),
        ("html", "<ul>\n¦\n</ul>\n", "<li></li>\n<li></li>\n<li></li>\n<li>x</li>"),
        ("go", "a()\nnext()\n¦\nnext()\n", "next()"),
        ("cpp", "namespace a {\nint f() {\n  return 1;\n¦\n\n}  // namespace a\n", "}"),
        ("typescript", "const a = 1;\n\nimport type { ¦\n\ntype B = string;\n\ntype C = B;\n", "A } from './a';"),
    ],
)
def test_usual_text_of_a_language_is_kept(language, marked, fill):
    assert judged(marked, fill, language).text == fill


@pytest.mark.parametrize(
    ("language", "marked", "fill", "expected"),
    [
        (
            "go",
            "func f() {\n\tif a {\n\t\tb()\n\t}\n¦\n}\n",
            "    if c {\n        d()\n    }",
            "\tif c {\n\t\td()\n\t}",
        ),
        # blanks inside brackets, as the file has them
        ("javascript", "f( a );\ng( b );\nh(¦\n", " c );", " c );"),
        ("javascript", "f(a);\ng(b);\nh(¦\n", " c);", "c);"),
        ("javascript", "// One sentence.¦\n", " Another one", " Another one"),
        ("javascript", "a.¦\n", " b()", "b()"),
        # equal elements of a list
        ("kotlin", "val a = listOf(\n    0f,\n    b,\n    ¦\n    0f,\n    c,\n)\n", "0f,", "0f,"),
        ("sql", "SELECT a FROM x;\nSELECT a FROM x;\n\nSELECT b FROM x;\n¦\n", "SELECT b FROM x;", "SELECT b FROM x;"),
    ],
)
def test_the_habits_of_a_file_are_kept(language, marked, fill, expected):
    assert judged(marked, fill, language).text == expected


METHODS = "".join(f"    int f{i}(int a) {{\n        return a + {i};\n    }}\n\n" for i in range(300))
CLASS = f"class A {{\n{METHODS}    int g() {{\n        ¦\n    }}\n\n{METHODS}}}\n"
ITEMS = '    {"b": 1},\n' * 900
ARRAY = f'{{\n  "a": [\n{ITEMS}    ¦\n{ITEMS}    {{}}\n  ]\n}}\n'
DEFS = "  def f\n    1\n  end\n\n" * 500
MODULE = f"module A\n{DEFS}  def g\n    ¦\n  end\n\n{DEFS}end\n"
NAMESPACE = "namespace a {\n\nint f() {\n  return 1;\n}\n\nint g() {\n  ¦\n}\n\n}  // namespace a\n"


@pytest.mark.parametrize(
    ("language", "marked", "fill", "is_kept"),
    [
        ("java", CLASS, "return 1;", True),
        ("java", CLASS, "return 1 2;", False),
        ("java", f"¦\n{METHODS}}}\n", "class A {", True),
        ("json", ARRAY, '{"c": 2},', True),
        ("json", ARRAY, '{"c" 2},', False),
        ("ruby", MODULE, "x = 1", True),
        ("ruby", MODULE, "x = = 1", False),
        ("cpp", NAMESPACE, "return f();", True),
        ("cpp", NAMESPACE, "return f(;", False),
    ],
)
def test_a_part_of_a_long_file_is_judged_as_the_whole_would_be(language, marked, fill, is_kept):
    result = judged(marked, fill, language)
    assert (result == Candidate(fill, -0.5)) == is_kept
