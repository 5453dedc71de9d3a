"""Imports of a buffer, and definitions of a file in every language with a query for them."""

from pathlib import Path

import pytest
from cases import read_cases

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


@pytest.mark.parametrize(("title", "text", "expected"), [*read_cases(Path(__file__).with_name("definitions.txt"))])
def test_definitions_are_shown_by_their_signatures(title, text, expected):
    assert definitions_of(text, title.partition(":")[0]) == expected


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
