import random
import time
import tracemalloc

import pytest
from tree_sitter import Parser

from dg_lsp.context.languages import grammar_of, language_of
from dg_lsp.context.syntax_tree import LimitedParser

TYPESCRIPT = grammar_of(language_of("typescript").grammar)
RUST = grammar_of(language_of("rust").grammar)
SLOW = "%w("
"""What tree-sitter needs quadratic time for in Rust: 0.3 s for 2 kB, 6 s for 8 kB, an hour and more for 200 kB."""


@pytest.mark.timeout(60)
@pytest.mark.parametrize("before", ["", "fn f() { g(1); }\n" * 10_000], ids=["from the beginning", "at the end"])
def test_a_text_that_would_be_parsed_for_hours_is_given_up(before):
    parser, text = LimitedParser(RUST), before + SLOW * 50_000
    assert parser.root(text) is None
    assert parser.root("fn f() {}") is None  # the time is over for its variants too


def test_no_character_is_cut_where_the_parser_reads_in_pieces():
    for length in range(4080, 4110):
        for tail in ("é", "€", "𝄞", "é€𝄞", "𝄞=", "é = 1"):
            text = "#".ljust(length, "é") + f"\nlet x{tail}"
            root = LimitedParser(RUST).root(text)
            assert str(root) == str(Parser(RUST).parse(text.encode()).root_node)
            assert root.end_byte == len(text.encode())


def test_texts_that_were_parsed_are_freed():
    """tree-sitter keeps every object that it has read through a function."""
    num, length = 50, 100_000

    def parse(number):
        text = f"fn f{number}() {{ /* a */ }}\n".ljust(length, "\n") + f"let {number} = 'é"
        assert LimitedParser(RUST).root(text).has_error

    parse(0)
    tracemalloc.start()
    try:
        for number in range(num):
            parse(number)
        assert tracemalloc.get_traced_memory()[0] < length
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("num", [1, 50, 100, 2000])
def test_a_long_comment_is_parsed_in_one_piece(num):
    """Its prose would have many errors, of which a parser with a limit takes some only."""
    comment = "/**\n" + " * Don't f( g[ {h.\n" * num + " */\n"
    for text in (comment, "f();\n" * 700 + comment, f"{comment * 2}f();\n"):
        root = LimitedParser(TYPESCRIPT, max_errors=40).root(text)
        assert root is not None or num == 2000
        assert root is None or not root.has_error


def test_a_text_with_too_many_errors_is_not_parsed_to_its_end():
    prose = "Don't f( g[ {h. " * 1000
    assert LimitedParser(TYPESCRIPT).root(prose) is not None
    assert LimitedParser(TYPESCRIPT, max_errors=40).root(prose) is None


def test_a_variant_has_an_error_if_its_own_tree_has_one():
    rng = random.Random(0)
    start = 'fn f() {\n    let a = [1, (2)];\n    g(a, "b");\n}\n'
    text = start * 8
    parser, num_errors = LimitedParser(RUST), 0
    for _ in range(300):
        at, end = sorted(rng.sample(range(len(text)), 2))
        variant = text[:at] + rng.choice(["", "x", "{", "}", '"', "/*", "*/", "let b = 1;", "("]) + text[end:]
        has_error = LimitedParser(RUST).root(variant).has_error
        parser.root(rng.choice([text, start + "}" + text, variant[: len(variant) // 2]]))
        assert parser.has_error(variant) == has_error
        num_errors += has_error
    assert 50 < num_errors < 300


@pytest.mark.parametrize("before", ['let x = "/*";\n', "// /*\n", 'let x = "`";\n', "m! { /*\n", ""])
def test_what_looks_like_a_long_comment_is_not_parsed_at_once(before):
    """The part of a parse that cannot be stopped takes quadratic time."""
    for num in (990, 2600):
        began, slow = time.thread_time(), SLOW * num
        parser = LimitedParser(RUST, seconds=0.1)
        parser.root(f"fn f() {{\n// {slow}\n{before}{slow}*/")
        parser.has_error(f"fn f() {{\n{slow}\n{before}*/")
        assert time.thread_time() - began < 2


@pytest.mark.parametrize("text", [SLOW * 1960, "fn f() {}\n" * 100 + SLOW * 1600], ids=["slow", "slow at its end"])
def test_a_slow_text_is_given_up_by_its_beginnings(text):
    """Its whole would be parsed in 2.6 s, in one piece, with a gigabyte of memory."""
    began = time.thread_time()
    assert LimitedParser(RUST, seconds=0.25).root(text) is None
    assert time.thread_time() - began < 1.5
