"""Files that are being written: blocks above the cursor are open, and the fill need not close them."""

import pytest

from dg_lsp.postprocess.validate import Candidate, Reason, Rejection

from .conftest import judged

JAVA = "package a;\n\npublic class Store {\n    private final List<String> items;\n\n"
CLASS = "export class Store {\n  private items: string[] = [];\n\n  add(item: string): void {\n"
NAMESPACE = "namespace A\n{\n    public class B\n    {\n        public void C()\n        {\n            "
VECTOR = "namespace a {\n\nint f(const std::vector<int>& v) {\n  int sum = 0;\n  "
ENDS = {  # texts before a cursor at the end of a file, and correct fills
    "javascript": (
        ("const a = require('a');\n\nmodule.exports = {\n  b() {\n    ", "return 1;"),
        ("describe('a', () => {\n  it('b', async () => {\n    ", "expect(await f()).toBe(1);"),
        ("app.get('/', (request, response) => {\n  ", "response.send('x');\n});"),
        ("function f() {\n  if (a) {\n    b();\n  } else ", "{"),
        ("function f() {\n  try {\n    b();\n", "  } catch (e) {"),
        ("import {\n  a,\n  ", "b,"),
    ),
    "typescript": (
        (CLASS + "    this.items.", "push(item);"),
        (CLASS, "    this.items.push(item);"),
        (CLASS, "    this.items.push(item);\n  }"),
        (CLASS, "    this.items.push(item);\n  }\n}"),
        (CLASS, "    if (item) {"),
        ("interface A {\n  b: string;\n  ", "c: number;"),
        ("const x = items.map((item) => ", "item.size);"),
        ("function a() {\n  const b = 1;\n\nfunction f(): number {\n  return ", "total;"),
    ),
    "typescriptreact": (
        ("export function A() {\n  return (\n    <div>\n      {b.map((c) => (\n        ", "<span>{c}</span>"),
        ("export function A() {\n  const [c] = useState(0);\n  ", "return <div>{c}</div>;"),
    ),
    "go": (
        ("package a\n\nfunc f(b []int) int {\n    c := 0\n    ", "for _, d := range b {"),
        ("package a\n\nfunc f(b []int) int {\n    for _, d := range b {\n", "        c += d\n    }"),
        ('package a\n\nimport (\n    "fmt"\n    ', '"os"'),
    ),
    "rust": (
        ("struct A;\n\nimpl A {\n    pub fn new() -> Self {\n        ", "Self { b: 0 }"),
        ("fn f(a: Option<i32>) -> i32 {\n    match a {\n        Some(b) => b,\n        ", "None => 0,"),
    ),
    "java": (
        (JAVA + "    public int size() {\n        ", "return items.size();"),
        (JAVA + "    ", "public boolean isEmpty() {\n        return items.isEmpty();\n    }"),
        (JAVA + "    ", "@Override"),
    ),
    "kotlin": (
        ("class A(val b: Int) {\n    fun c(): Int {\n        ", "return b + 1"),
        ("fun f(a: Int) = when (a) {\n    1 -> 2\n    ", "else -> 3"),
    ),
    "c": (
        ("int main(void)\n{\n    int a = 0;\n    ", 'printf("%d", a);'),
        ("struct a {\n    int b;\n    ", "char *c;"),
    ),
    "cpp": ((VECTOR, "for (int i : v) {"), (VECTOR + "for (int i : v) {\n    ", "sum += i;")),
    "csharp": ((NAMESPACE, 'Console.WriteLine("x");'), (NAMESPACE, "if (d)")),
    "php": (
        ("<?php\n\nfunction f(array $a) {\n    foreach ($a as $b) {\n        ", "echo $b;"),
        ("<?php\n\nreturn [\n    'a' => 1,\n    ", "'b' => 2,"),
    ),
    "ruby": (
        ("class A\n  def b\n    ", "@b"),
        ("class A\n  def b\n    @b\n  end\n\n  ", "def c"),
        ("class A\n  def b\n    @b\n  end\n\n  ", "def c\n    @c\n  end"),
    ),
    "lua": (
        ("local function f(a)\n  local b = a\n  ", "return b"),
        ("local function f(a)\n  ", "for _, b in ipairs(a) do"),
        ("local a = {\n  b = 1,\n  ", "c = 2,"),
    ),
    "shellscript": (
        ("#!/bin/bash\n\nif [ -f a ]; then\n  ", "echo a"),
        ("case $1 in\n  a)\n    ", "echo a"),
        ('for a in b c; do\n  if [ -f "$a" ]; ', "then"),
    ),
    "json": (('{\n  "a": {\n    "b": [\n      1,\n      ', "2,"), ('{\n  "a": 1,\n  ', '"b": 2')),
    "css": (("@media (max-width: 10px) {\n  .a {\n    ", "margin: 0;"), ("@media print {\n  ", ".a {")),
    "python": (("def f(a):\n    b = [\n        1,\n        ", "2,"), ("def f(a):\n    try:\n        ", "g()")),
}
MIDDLES = {  # texts around a cursor, above a finished definition, and correct fills
    "javascript": ("function a() {\n  const b = ¦\n\nfunction c() {\n  return 1;\n}\n", "d();"),
    "typescript": ("class A {\n  b() {\n    ¦\n\n  c() {\n    return 1;\n  }\n}\n", "d();"),
    "go": ("package a\n\nfunc f() {\n    for _, b := range ¦\n\nfunc g() {\n    return\n}\n", "c {"),
    "rust": ("impl A {\n    fn f() {\n        ¦\n\n    fn g() {\n        h();\n    }\n}\n", "h();"),
    "java": ("class A {\n    void f() {\n        int b = ¦\n\n    void g() {\n        h();\n    }\n}\n", "1;"),
    "kotlin": ("class A {\n    fun f() {\n        ¦\n\n    fun g() {\n        h()\n    }\n}\n", "h()"),
    "c": ("int f(void)\n{\n    int a = ¦\n\nint g(void)\n{\n    return 1;\n}\n", "1;"),
    "php": ("<?php\nclass A {\n    function f() {\n        ¦\n\n    function g() {\n        h();\n    }\n}\n", "h();"),
    "ruby": ("class A\n  def f\n    ¦\n\n  def g\n    h\n  end\nend\n", "h"),
    "lua": ("local function f()\n  if a ¦\n\nlocal function g()\n  h()\nend\n", "then"),
    "shellscript": ("f() {\n  ¦\n\ng() {\n  echo b\n}\n", "echo a"),
    "css": (".a {\n  ¦\n\n.b {\n  color: blue;\n}\n", "color: red;"),
}


@pytest.mark.parametrize(
    ("language", "above", "fill"), [(language, *case) for language, cases in ENDS.items() for case in cases]
)
def test_a_fill_at_the_end_of_an_unfinished_file_is_kept(language, above, fill):
    assert judged(above + "¦", fill, language) == Candidate(fill, -0.5)


BLOCKS = {  # texts around a cursor in an open block of a block that goes on, and what the fill repeats of its end
    "python": ("def f(x):\n    if x:\n        ¦\n    return g(x)\n\n\ndef h():\n    pass\n", "a(x)\n        b(x)", ""),
    "typescript": (
        "class A {\n  f() {\n    a.forEach((i) => {\n      ¦\n    return 1;\n  }\n}\n",
        "b(i);\n      c(i);",
        "\n    });",
    ),
    "go": ("package a\n\nfunc f() int {\n\tif a {\n\t\t¦\n\treturn b\n}\n", "c()\n\t\td()", "\n\t}"),
    "rust": (
        "fn f(a: i32) -> i32 {\n    if a > 0 {\n        ¦\n    a\n}\n",
        "let b = a + 1;\n        c(b);",
        "\n    }",
    ),
    "c": (
        "int f(int a)\n{\n    if (a) {\n        ¦\n    return a;\n}\n\nint g(void)\n{\n    return 1;\n}\n",
        "int b = a + 1;\n        c(b);",
        "\n    }",
    ),
    "java": (
        "class A {\n    int f() {\n        if (a) {\n            ¦\n        return b;\n    }\n}\n",
        "c();\n            d();",
        "\n        }",
    ),
    "ruby": ("class A\n  def f\n    if a\n      ¦\n    b\n  end\nend\n", "c\n      d", "\n    end"),
    "json": ('{\n  "a": {\n    ¦\n  "d": 1\n}\n', '"b": 1,\n    "c": 2', "\n  },"),
    "yaml": ("a:\n  b:\n    ¦\n  c: 1\n", "d: 1\n    e: 2", ""),
    "html": ("<div>\n  <ul>\n    ¦\n  <p>x</p>\n</div>\n", "<li>a</li>\n    <li>b</li>", "\n  </ul>"),
    "css": ("@media print {\n  .a {\n    ¦\n  .b {\n    top: 0;\n  }\n}\n", "top: 0;\n    left: 0;", "\n  }"),
}


@pytest.mark.parametrize("ends_block", [False, True])
@pytest.mark.parametrize("language", BLOCKS)
def test_lines_of_an_unfinished_block_inside_another_one_are_kept(language, ends_block):
    marked, fill, end = BLOCKS[language]
    fill += end if ends_block else ""
    assert judged(marked, fill, language) == Candidate(fill, -0.5)


@pytest.mark.parametrize(("language", "marked", "fill"), [(language, *case) for language, case in MIDDLES.items()])
def test_a_line_of_an_unfinished_block_above_another_one_is_kept(language, marked, fill):
    assert judged(marked, fill, language) == Candidate(fill, -0.5)


@pytest.mark.parametrize(
    ("language", "above", "fill"),
    [
        pytest.param("typescript", CLASS + "    this.items.", "push(item;", id="a bracket of the fill stays open"),
        pytest.param("typescript", CLASS, "    this.items.push(item));", id="a bracket too many"),
        pytest.param("typescript", CLASS + "    const a = ", "= 1;", id="an operator without its operand"),
        pytest.param("go", "package a\n\nfunc f() {\n    ", "a := := 1", id="two operators"),
        pytest.param("java", JAVA + "    ", "public boolean boolean isEmpty( {", id="a header with a mistake"),
        pytest.param("ruby", "class A\n  def b\n    ", "c = = 1", id="two operators in ruby"),
    ],
)
def test_a_mistake_at_the_end_of_an_unfinished_file_is_refused(language, above, fill):
    result = judged(above + "¦", fill, language)
    assert isinstance(result, Rejection)
    assert result.reason is Reason.SYNTAX_ERROR


def test_a_fill_that_ends_more_blocks_than_are_open_keeps_the_lines_inside_the_block():
    result = judged(CLASS + "¦", "    this.items.push(item);\n  }\n}\n}", "typescript")
    assert result == Candidate("    this.items.push(item);", -0.5)


FUNCTIONS = "    #[test]\n    fn a() {\n        let b = 1;\n    }\n\n" * 120
TEST = '    #[test]\n    fn a() {\n        ¦\nclass A:\n    pass\n";\n        b(c);\n    }\n'
DOCUMENTED = '[a]\nb = """\nText.\n\n[c]: d\n¦\ne = [\n  1,\n]\n\n[f]\n'
HEADER = "// A header.\n\n¦\n#define A_H\n\n#include <a.h>\n\nint f(void);\n\nint g(void);\n\n#endif\n"
SNAPSHOT = '  expect(a).toBe(`\n    {\n      "b": 1,\n    }\n  `);\n\n'
SNAPSHOTS = "test('a', () => {\n" + SNAPSHOT * 120 + "  const a = z.object({\n    b,\n  ¦\n" + SNAPSHOT * 120 + "});\n"
TESTS = "".join(f"test('a{i}', () => {{\n  const b = c({i});\n\n  expect(b).toBe({i});\n}});\n\n" for i in range(90))
COMMENT = "/**\n" + " * Don't `a(` (b, [c or {d.\n" * 150


@pytest.mark.parametrize(
    ("language", "marked", "fill"),
    [
        pytest.param(
            "rust",
            f"mod tests {{\n{FUNCTIONS}{TEST}{FUNCTIONS}}}\n",
            'let c = r"',
            id="it opens a string that ends below",
        ),
        pytest.param("toml", DOCUMENTED, '"""', id="it ends a string with a line like code"),
        pytest.param("cpp", HEADER, "#ifndef A_H", id="a condition that ends below"),
        pytest.param("typescript", SNAPSHOTS, "});", id="a call around each of the strings below"),
        pytest.param(
            "typescript",
            f"{TESTS}test('a¦\n  const b = d();\n\n  expect(b).toBe(1);\n}});\n\n{TESTS}",
            "b', () => {",
            id="the end of a string, and the beginning of a block",
        ),
        pytest.param("typescript", f"{COMMENT}¦\n{COMMENT[4:]} */\nf();\n", " * e) `f` } (g", id="prose of a comment"),
    ],
)
def test_a_fill_whose_other_end_is_outside_of_the_parsed_text_is_kept(language, marked, fill):
    assert judged(marked, fill, language) == Candidate(fill, -0.5)


def test_a_quote_that_ends_in_code_below_is_refused():
    marked = 'fn a() {\n    let b = ¦;\n    c("d");\n}\n\nfn e() {}\n'
    assert isinstance(judged(marked, '"f', "rust"), Rejection)
