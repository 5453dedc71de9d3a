"""Imports of a buffer, and definitions of a file in every language with a query for them."""

import pytest

from dg_lsp.context import languages, tags
from dg_lsp.context.tags import definitions_of, imports_of

KEYWORDS = {
    "import",
    "from",
    "as",
    "export",
    "const",
    "require",
    "require_relative",
    "use",
    "pub",
    "crate",
    "include",
    "local",
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("import a.b as c, d\nfrom ..e import f\n", ["a b c d", "e f"], id="Python"),
        pytest.param(
            "from a import (  # why\n    b,\n)\nif X:\n    from c import d, \\\n e\n", ["a why b", "c d e"], id="lines"
        ),
        pytest.param("from a import (b,\n\ndef f(:\n  x = (\n", ["a b"], id="an open bracket"),
        pytest.param("important = 1\nfrom_here = 2\n", [], id="other words"),
        pytest.param("#" * tags.MAX_IMPORT_CHARS + "\nimport a\n", [], id="far from the beginning"),
        pytest.param("import A, { b as c,\n  d } from './x'\nexport * from './w'\n", ["A b c d x", "w"], id="JS"),
        pytest.param("const {\n  r,\n  s: t,\n} = require('./r')\n", ["r s t"], id="require of JS"),
        pytest.param("export function f() { return './b' }\nconst a = {\n}\n", [], id="no import of JS"),
        pytest.param('import (\n\tx "m/a"\n\t"m/b"\n)\n', ["x m a b"], id="Go"),
        pytest.param("pub(crate) use crate::a::{\n    b::{C, D},\n};\nmod f;\n", ["a b C D", "mod f"], id="Rust"),
        pytest.param('#include "x.h"\r\n# include <y>\r\n', ["x h", "y"], id="C"),
        pytest.param("local a = require('x.y')\nrequire_relative 'a/b'\n", ["a x y", "a b"], id="Lua and Ruby"),
    ],
)
def test_the_words_of_imports_are_found_in_any_language(text, expected):
    assert [words - KEYWORDS for words in imports_of(text)] == [set(words.split()) for words in expected]


@pytest.mark.parametrize(
    ("language", "text", "expected"),
    [
        ("python", "def f(a, *, b=1) -> int:\n    return a\n", {"f": "def f(a, *, b=1) -> int: ..."}),
        ("python", "async def f():\n    return 1\n", {"f": "async def f(): ..."}),
        ("python", "@dec(1)\ndef f(\n    a,  # why\n    b: int,\n): pass\n", {"f": "def f(a, b: int): ..."}),
        ("python", "X: int = 3\nY = [\n  1,\n]\nx.y = 1\na, b = c\n", {"X": "X: int = 3", "Y": "Y = [\n  1,\n]"}),
        (
            "python",
            "class A(B): pass\ndef f(): pass\ndef f(a): pass\n",
            {"A": "class A(B): pass", "f": "def f(a): ..."},
        ),
        ("python", "def f(a):\n    def g(): pass\n\n\nclass B(\n", {"f": "def f(a): ..."}),
        ("python", "name = '\ud7ff'\n", {"name": "name = '\ud7ff'"}),
        (
            "python",
            (
                "class A:\n    x: int = 1\n    def __init__(self, x): self.x = x\n"
                "    @property\n    def y(self): return 1\n    def _z(self): pass\n    _w = 2\n    print(1)\n"
            ),
            {"A": "class A:\n    x: int = 1\n    def __init__(self, x): ...\n    def y(self): ..."},
        ),
        (
            "javascript",
            (
                "export const f = (a, b) => {\n  return 1\n}\nexport class A extends B {\n  constructor(x) {}\n"
                "  get(y) {}\n  #p() {}\n}\nmodule.exports.h = function (z) {}\nconst K = 3\n"
            ),
            {
                "f": "export const f = (a, b) =>",
                "A": "export class A extends B\n    constructor(x)\n    get(y)",
                "h": "module.exports.h = function (z)",
                "K": "const K = 3",
            },
        ),
        (
            "typescript",
            (
                "export interface A { x: number; f(a: string): void }\nexport type T = {\n  a: number\n}\n"
                "export class C<T> implements A {\n  private z = 1\n  f(a: string): void {}\n}\n"
                "declare function h(a: number): string\n"
            ),
            {
                "A": "export interface A\n    x: number\n    f(a: string): void",
                "T": "export type T = {\n  a: number\n}",
                "C": "export class C<T> implements A\n    f(a: string): void",
                "h": "declare function h(a: number): string",
            },
        ),
        (
            "go",
            (
                "package a\n\ntype T struct {\n\tA int\n}\n\nfunc (t *T) Foo(a int) error {\n\treturn nil\n}\n"
                "func Bar(a int) int { x := 1; return x }\nconst (\n\tK = 1\n)\n"
            ),
            {
                "T": "type T struct {\n\tA int\n}",
                "Foo": "func (t *T) Foo(a int) error",
                "Bar": "func Bar(a int) int",
                "K": "K = 1",
            },
        ),
        (
            "rust",
            (
                "pub struct A {\n    x: i32,\n}\nimpl A {\n"
                "    pub fn new(x: i32) -> Self { A { x } }\n    fn own(&self) {}\n}\n"
                "impl D for A { fn fmt(&self) {} }\npub fn f<T>(a: T) -> i32 { 1 }\nmod gone;\n"
            ),
            {
                "A": "pub struct A {\n    x: i32,\n}",
                "new": "pub fn new(x: i32) -> Self",
                "own": "fn own(&self)",
                "fmt": "fn fmt(&self)",
                "f": "pub fn f<T>(a: T) -> i32",
            },
        ),
        (
            "java",
            (
                "public class A extends B {\n  static final int K = 1;\n  private int z;\n  A(int x) { }\n"
                "  @Override public int f(int a) throws E { return 1; }\n}\n"
            ),
            {
                "A": "public class A extends B\n    static final int K = 1;\n    A(int x)\n"
                "    @Override public int f(int a) throws E"
            },
        ),
        (
            "kotlin",
            "class A(val x: Int) : C() {\n  fun f(a: Int): Int { return 1 }\n}\nfun top(a: Int) = 1\n",
            {"A": "class A(val x: Int) : C()\n    fun f(a: Int): Int", "top": "fun top(a: Int)"},
        ),
        (
            "c",
            (
                "#ifndef X\n#define X\n#define K 1\nstruct S {\n  int b;\n};\n"
                "static int *f(int a) { return 0; }\nint g(void);\n#endif\n"
            ),
            {
                "K": "#define K 1",
                "S": "struct S {\n  int b;\n}",
                "f": "static int *f(int a)",
                "g": "int g(void)",
            },
        ),
        (
            "cpp",
            (
                "namespace n {\nclass A : public B {\n public:\n  int f(int a) const;\n};\n"
                "int A::f(int a) const { return 1; }\n"
                "template <class T> T id(T a) { return a; }\n}\n"
            ),
            {
                "A": "class A : public B\n    int f(int a) const",
                "f": "int A::f(int a) const",
                "id": "template <class T> T id(T a)",
            },
        ),
        (
            "ruby",
            "class A < B\n  def f(a)\n    1\n  end\nend\ndef top(a)\n  1\nend\nK = 1\n",
            {"A": "class A < B\n    def f(a)", "top": "def top(a)", "K": "K = 1"},
        ),
        (
            "php",
            (
                "<?php\nnamespace App;\nclass A extends B {\n  public int $x = 1;\n  private $y;\n"
                "  public function f(int $a): int { return 1; }\n}\n"
            ),
            {"A": "class A extends B\n    public int $x = 1;\n    public function f(int $a): int"},
        ),
        (
            "lua",
            "local M = {}\nfunction M.f(a)\n  return 1\nend\nM.h = function(c) return 1 end\nreturn M\n",
            {"f": "function M.f(a)", "h": "M.h = function(c)"},
        ),
        ("markdown", "# A\n", {}),
    ],
)
def test_definitions_are_shown_by_their_signatures(language, text, expected):
    assert definitions_of(text, language) == expected


def test_a_class_shows_its_first_members():
    large = "class A:\n" + "".join(f"    def m{i}(self): pass\n" for i in range(100))
    assert definitions_of(large, "python")["A"].count("\n") == tags.MAX_MEMBERS


def test_a_missing_grammar_gives_no_definitions_and_is_reported_once(monkeypatch, caplog):
    monkeypatch.setitem(languages._TABLE, "lua", languages._TABLE["lua"] | {"grammar": "tree_sitter_gone"})
    languages._language.cache_clear()
    tags._tags_query.cache_clear()
    try:
        assert [definitions_of("function f() end\n", "lua") for _ in range(2)] == [{}, {}]
        assert len(caplog.messages) == 1
        assert "nothing is read from imported files" in caplog.messages[0]
    finally:
        monkeypatch.undo()
        languages._language.cache_clear()
        tags._tags_query.cache_clear()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("text", ["(" * 100_000, "fn f() {" + "$" * 100_000], ids=["one error", "many"])
def test_a_file_that_would_be_searched_for_minutes_has_no_definitions(text):
    assert definitions_of("fn f() {}\n" + text, "rust") == {}
