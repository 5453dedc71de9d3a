"""Fills beside the code around them: syntax, wrong partners, habits of a file, unfinished files and parts of long ones.

In a file that is being written, blocks above the cursor are open, lines are half typed, and editors close brackets.
"""

import pytest

from dg_lsp.postprocess.validate import Candidate, Reason

from .conftest import cases, judged

PACKAGE = "package a;\n\npublic class Store {\n    private final List<String> items;\n\n"
STORE = "export class Store {\n  private items: string[] = [];\n\n  add(item: string): void {\n"
PUSH = "    this.items.push(item);"
QUOTE = 'fn a() {\n    let b = ¦;\n    c("d");\n}\n\nfn e() {}\n'
METHODS = "".join(f"    int f{i}(int a) {{\n        return a + {i};\n    }}\n\n" for i in range(300))
CLASS = f"class A {{\n{METHODS}    int g() {{\n        ¦\n    }}\n\n{METHODS}}}\n"
STRING = '    void g() {\n        b(@"{\n  ""c¦\n}", d);\n    }\n\n'
VERBATIM = f"class A {{\n{METHODS}{STRING}{METHODS}}}\n"
ITEMS = '    {"b": 1},\n' * 900
ARRAY = f'{{\n  "a": [\n{ITEMS}    ¦\n{ITEMS}    {{}}\n  ]\n}}\n'
DEFS = "  def f\n    1\n  end\n\n" * 500
MODULE = f"module A\n{DEFS}  def g\n    ¦\n  end\n\n{DEFS}end\n"
NAMESPACE = "namespace a {\n\nint f() {\n  return 1;\n}\n\nint g() {\n  ¦\n}\n\n}  // namespace a\n"
FUNCTIONS = "    #[test]\n    fn a() {\n        let b = 1;\n    }\n\n" * 120
TEST = '    #[test]\n    fn a() {\n        ¦\nclass A:\n    pass\n";\n        b(c);\n    }\n'
TESTS = f"mod tests {{\n{FUNCTIONS}{TEST}{FUNCTIONS}}}\n"
DOCUMENTED = '[a]\nb = """\nText.\n\n[c]: d\n¦\ne = [\n  1,\n]\n\n[f]\n'
HEADER = "// A header.\n\n¦\n#define A_H\n\n#include <a.h>\n\nint f(void);\n\nint g(void);\n\n#endif\n"
SNAPSHOT = '  expect(a).toBe(`\n    {\n      "b": 1,\n    }\n  `);\n\n'
SNAPSHOTS = "test('a', () => {\n" + SNAPSHOT * 120 + "  const a = z.object({\n    b,\n  ¦\n" + SNAPSHOT * 120 + "});\n"
UNFINISHED = "module A\n  class B\n    def c(a)\n      d(a)\n    end\n\n    "
CALLS = "".join(f"test('a{i}', () => {{\n  const b = c({i});\n\n  expect(b).toBe({i});\n}});\n\n" for i in range(90))
TITLE = f"{CALLS}test('a¦\n  const b = d();\n\n  expect(b).toBe(1);\n}});\n\n{CALLS}"
COMMENT = "/**\n" + " * Don't `a(` (b, [c or {d.\n" * 150
PROSE = "prose, it's (\n" * 1000 + "¦\n" + "more prose\n" * 1000


@pytest.mark.parametrize(
    ("language", "marked", "fill", "kept"),
    [
        *cases("repeated_ends", "fill", "kept"),
        *cases("python", "fill", "kept"),
        *cases("languages", "fill", "kept"),
        pytest.param("typescript", f"{STORE}¦", f"{PUSH}\n  }}\n}}\n}}", PUSH, id="it ends more blocks than are open"),
    ],
)
def test_a_fill_is_kept_as_far_as_its_language_and_its_file_allow_it(language, marked, fill, kept):
    result = judged(marked, fill, language)
    assert result == Candidate(kept, -0.5) if kept is not None else result.reason is Reason.SYNTAX_ERROR


@pytest.mark.parametrize(
    ("language", "marked", "fill"),
    [
        *cases("unfinished_files", "fill"),
        *cases("positions", "fill"),
        pytest.param("ruby", f"{UNFINISHED}¦\n", "x = 1\n\n    def f(a)\n      d(a)", id="ruby: an open block"),
        pytest.param("lua", "local c = b\n¦\n", "if c then\n  d()\nelse\n  e()", id="lua: an open block"),
        pytest.param("javascript", "function f(a) {\n  g(a, [\n    ¦\n}\n", "b,", id="brackets that stay open"),
        # its other end is outside of the parsed text
        pytest.param("rust", TESTS, 'let c = r"', id="it opens a string that ends below"),
        pytest.param("toml", DOCUMENTED, '"""', id="it ends a string with a line like code"),
        pytest.param("cpp", HEADER, "#ifndef A_H", id="a condition that ends below"),
        pytest.param("typescript", SNAPSHOTS, "});", id="a call around each of the strings below"),
        pytest.param("typescript", TITLE, "b', () => {", id="the end of a string, and the beginning of a block"),
        pytest.param("typescript", f"{COMMENT}¦\n{COMMENT[4:]} */\nf();\n", " * e) `f` } (g", id="prose of a comment"),
        # only a part of a long file is parsed
        pytest.param("java", CLASS, "return 1;", id="java"),
        pytest.param("java", f"¦\n{METHODS}}}\n", "class A {", id="the header of a class"),
        pytest.param("csharp", VERBATIM, '"": 1', id="csharp: a line of a string"),
        pytest.param("json", ARRAY, '{"c": 2},', id="json"),
        pytest.param("ruby", MODULE, "x = 1", id="ruby"),
        pytest.param("cpp", NAMESPACE, "return f();", id="cpp"),
        pytest.param("cpp", "namespace a {\n\nstruct B {\n  int c;\n};\n\n¦", "} // a", id="a namespace's end"),
        # nothing is checked
        pytest.param("plaintext", "x = ¦\n", "1 2", id="unknown language"),
        pytest.param("python", PROSE, "1 2", id="far from any landmark"),
        pytest.param("python", "x = [" + "1, " * 1_000_000 + "¦]", "1 2", id="giant line"),
    ],
)
def test_a_right_fill_is_kept(language, marked, fill):
    assert judged(marked, fill, language) == Candidate(fill, -0.5)


@pytest.mark.parametrize(
    ("language", "marked", "fill"),
    [
        pytest.param("typescript", f"{STORE}    this.items.¦", "push(item;", id="a bracket of the fill stays open"),
        pytest.param("typescript", f"{STORE}¦", "    this.items.push(item));", id="a bracket too many"),
        pytest.param("typescript", f"{STORE}    const a = ¦", "= 1;", id="an operator without its operand"),
        pytest.param("go", "package a\n\nfunc f() {\n    ¦", "a := := 1", id="two operators"),
        pytest.param("java", f"{PACKAGE}    ¦", "public boolean boolean isEmpty( {", id="a header with a mistake"),
        pytest.param("ruby", "class A\n  def b\n    ¦", "c = = 1", id="two operators in ruby"),
        pytest.param("rust", QUOTE, '"f', id="a quote that ends in code below"),
        pytest.param("java", CLASS, "return 1 2;", id="two numbers in a long file"),
        pytest.param("json", ARRAY, '{"c" 2},', id="a colon that is missing in a long file"),
        pytest.param("json", ARRAY, '"a": [1, 2}', id="a key between the elements of a long file"),
        pytest.param("ruby", MODULE, "x = = 1", id="two operators in a long file"),
        pytest.param("cpp", NAMESPACE, "return f(;", id="an open bracket in a long file"),
        pytest.param("c", "int f() {\n  ¦\n}\n", "int a = = 1;", id="two operators beside brackets that fit"),
    ],
)
def test_a_mistake_is_refused(language, marked, fill):
    assert judged(marked, fill, language).reason is Reason.SYNTAX_ERROR
