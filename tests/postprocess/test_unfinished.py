"""Files that are being written: blocks above the cursor are open, lines are half typed, and editors close brackets."""

import pytest

from dg_lsp.postprocess.validate import Candidate, Reason, Rejection

from .conftest import cases, judged

JAVA = "package a;\n\npublic class Store {\n    private final List<String> items;\n\n"
CLASS = "export class Store {\n  private items: string[] = [];\n\n  add(item: string): void {\n"
QUOTE = 'fn a() {\n    let b = ¦;\n    c("d");\n}\n\nfn e() {}\n'


@pytest.mark.parametrize(
    ("language", "marked", "fill"),
    [
        pytest.param("typescript", f"{CLASS}    this.items.¦", "push(item;", id="a bracket of the fill stays open"),
        pytest.param("typescript", f"{CLASS}¦", "    this.items.push(item));", id="a bracket too many"),
        pytest.param("typescript", f"{CLASS}    const a = ¦", "= 1;", id="an operator without its operand"),
        pytest.param("go", "package a\n\nfunc f() {\n    ¦", "a := := 1", id="two operators"),
        pytest.param("java", f"{JAVA}    ¦", "public boolean boolean isEmpty( {", id="a header with a mistake"),
        pytest.param("ruby", "class A\n  def b\n    ¦", "c = = 1", id="two operators in ruby"),
        pytest.param("rust", QUOTE, '"f', id="a quote that ends in code below"),
    ],
)
def test_a_mistake_in_an_unfinished_file_is_refused(language, marked, fill):
    result = judged(marked, fill, language)
    assert isinstance(result, Rejection)
    assert result.reason is Reason.SYNTAX_ERROR


def test_a_fill_that_ends_more_blocks_than_are_open_keeps_the_lines_inside_the_block():
    result = judged(CLASS + "¦", "    this.items.push(item);\n  }\n}\n}", "typescript")
    assert result == Candidate("    this.items.push(item);", -0.5)


FUNCTIONS = "    #[test]\n    fn a() {\n        let b = 1;\n    }\n\n" * 120
TEST = '    #[test]\n    fn a() {\n        ¦\nclass A:\n    pass\n";\n        b(c);\n    }\n'
MODULE = f"mod tests {{\n{FUNCTIONS}{TEST}{FUNCTIONS}}}\n"
DOCUMENTED = '[a]\nb = """\nText.\n\n[c]: d\n¦\ne = [\n  1,\n]\n\n[f]\n'
HEADER = "// A header.\n\n¦\n#define A_H\n\n#include <a.h>\n\nint f(void);\n\nint g(void);\n\n#endif\n"
SNAPSHOT = '  expect(a).toBe(`\n    {\n      "b": 1,\n    }\n  `);\n\n'
SNAPSHOTS = "test('a', () => {\n" + SNAPSHOT * 120 + "  const a = z.object({\n    b,\n  ¦\n" + SNAPSHOT * 120 + "});\n"
TESTS = "".join(f"test('a{i}', () => {{\n  const b = c({i});\n\n  expect(b).toBe({i});\n}});\n\n" for i in range(90))
TITLE = f"{TESTS}test('a¦\n  const b = d();\n\n  expect(b).toBe(1);\n}});\n\n{TESTS}"
COMMENT = "/**\n" + " * Don't `a(` (b, [c or {d.\n" * 150


@pytest.mark.parametrize(
    ("language", "marked", "fill"),
    [
        *cases("unfinished_files", "fill"),
        *cases("positions", "fill"),
        # its other end is outside of the parsed text
        pytest.param("rust", MODULE, 'let c = r"', id="it opens a string that ends below"),
        pytest.param("toml", DOCUMENTED, '"""', id="it ends a string with a line like code"),
        pytest.param("cpp", HEADER, "#ifndef A_H", id="a condition that ends below"),
        pytest.param("typescript", SNAPSHOTS, "});", id="a call around each of the strings below"),
        pytest.param("typescript", TITLE, "b', () => {", id="the end of a string, and the beginning of a block"),
        pytest.param("typescript", f"{COMMENT}¦\n{COMMENT[4:]} */\nf();\n", " * e) `f` } (g", id="prose of a comment"),
    ],
)
def test_a_right_fill_is_kept(language, marked, fill):
    assert judged(marked, fill, language) == Candidate(fill, -0.5)
