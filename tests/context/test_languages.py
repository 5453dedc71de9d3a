import pytest

from dg_lsp.context.languages import LANGUAGE_IDS, grammar_of, language_id_of, language_of, opening_of
from dg_lsp.context.syntax_tree import LimitedParser, errors_in


@pytest.mark.parametrize(
    ("language", "marked", "expected"),
    [
        ("python", "def f():|\n", "\n    "),
        ("python", "def f():|", "\n    "),
        ("python", "class A(B):|\n\n\nx = 1\n", "\n    "),
        ("python", "if x:\n  y()\nfor a in b:|\n", "\n  "),
        ("python", "def f():\n    if x == {1: 2}:|\n    return 1\n", "\n        "),
        ("python", "def f():\r\n    pass\r\nwhile True:  # ever|\r\n", "\r\n    "),
        ("python", "def f():\n\tif x:|\n", "\n\t\t"),
        ("python", "try:|   \n", "\n    "),
        ("python", "async def f() -> int:|\n", "\n    "),
        # no block
        ("python", "def f():|\n\n    return 1\n", ""),  # has a body
        ("python", "def f()|:\n", ""),  # text follows the cursor
        ("python", "x: int = {1:|\n", ""),
        ("python", "print(a[1:|\n", ""),
        ("python", "lambda x:|\n", ""),
        ("python", "# if this:|\n", ""),
        ("python", "    |\n", ""),
        ("ruby", "if x:|\n", ""),
    ],
)
def test_a_block_that_a_header_opens_begins_on_the_next_line(language, marked, expected):
    assert opening_of(marked.replace("|", "", 1), marked.index("|"), language) == expected


def test_a_missing_grammar_is_reported_once_with_the_command_that_installs_it(caplog):
    assert grammar_of("tree_sitter_missing_language") is None
    assert grammar_of("tree_sitter_missing_language") is None
    assert len(caplog.messages) == 1
    assert "tree-sitter-missing-language: syntax is not checked" in caplog.messages[0]
    assert "pip install '.[languages]'" in caplog.messages[0]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("src/App.tsx", "", "typescriptreact"),
        ("a\\b\\main.go", "", "go"),
        ("A.H", "", "cpp"),
        ("a.h", "#include <a>\n/** @class */\n", "cpp"),
        ("View.h", "// a\n\n#import <UIKit/UIKit.h>\n", "objective-c"),
        ("View.mm", "", "objective-c"),
        ("Makefile", "", "makefile"),
        ("docker/Dockerfile.dev", "", "dockerfile"),
        ("tsconfig.json", "", "jsonc"),
        ("package.json", "", "json"),
        (".bashrc", "", "shellscript"),
        ("run", "#!/bin/sh -e\n", "shellscript"),
        ("run", "#! /usr/bin/env -S deno run\n", "typescript"),
        ("run", "#!/usr/local/bin/python3.12\r\n", "python"),
        ("run", "#!/usr/bin/env LANG=C ruby\n", "ruby"),
        ("tool.py", "#!/bin/sh\n", "python"),  # the name wins
        ("lib.rs", "#![allow(unused)]\n", "rust"),
        ("unknown", "#![node]\n", "plaintext"),
        ("notes.txt", "python\n", "plaintext"),
        ("", "", "plaintext"),
        (".", "#!", "plaintext"),
    ],
)
def test_the_language_of_a_file_comes_from_its_name_or_its_interpreter(name, text, expected):
    assert language_id_of(name, text) == expected


@pytest.mark.parametrize(
    ("language_id", "expected"),
    [("sh", "shellscript"), ("C++", "cpp"), ("tsx", "typescriptreact"), ("cs", "csharp"), ("md", "markdown")],
)
def test_ids_of_other_editors_name_the_same_language(language_id, expected):
    assert language_of(language_id).id == expected


GRAMMARS = [language for language in map(language_of, LANGUAGE_IDS) if language.grammar]


@pytest.mark.parametrize("language", GRAMMARS, ids=lambda language: language.id)
def test_a_grammar_loads_and_the_comment_of_a_path_or_an_instruction_is_one(language):
    text = language.commented('src/a b.c: (add {x}, it\'s "one"')
    root = LimitedParser(grammar_of(language.grammar)).root(text + "\n")
    assert not list(errors_in(root))
    node = root.descendant_for_byte_range(len(text) // 2, len(text) // 2)
    while "comment" not in node.type and language.id not in ("json", "markdown"):
        node = node.parent
