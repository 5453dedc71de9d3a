import random
import tracemalloc

import pytest
from tree_sitter import Parser

from dg_lsp.context.languages import grammar_of, language_of
from dg_lsp.context.syntax_tree import LimitedParser

RUST = grammar_of(language_of("rust").grammar)
SLOW = "%w("
"""What tree-sitter needs quadratic time for in Rust: 0.3 s for 2 kB, 6 s for 8 kB, an hour and more for 200 kB."""


CALLS = "fn f() { g(1); }\n"


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "text",
    [
        pytest.param(SLOW * 50_000, id="from the beginning"),
        pytest.param(CALLS * 10_000 + SLOW * 50_000, id="at the end"),
        pytest.param(CALLS * 100 + SLOW * 1600, id="a few seconds, and a gigabyte of memory"),
        pytest.param(f"{CALLS}// /*\n{SLOW * 2600}*/", id="what looks like a comment"),
    ],
)
def test_a_text_that_would_be_parsed_for_long_is_given_up_by_its_operations(text):
    parser = LimitedParser(RUST, seconds=1e9)
    assert parser.root(text) is None
    assert parser.root("fn f() {}") is None  # the time is over for its variants too
    assert not parser.has_error("fn f( {")


def test_a_text_is_given_up_when_its_time_is_over():
    assert LimitedParser(RUST, seconds=-1.0).root(CALLS) is None


@pytest.mark.parametrize(
    "after",
    [
        pytest.param("", id="calls"),
        pytest.param("let a = [" + "1, " * 20_000 + "];\n", id="a long list"),
        pytest.param("/* " + "a( b[ " * 20_000 + "*/\n", id="a long comment"),
    ],
)
def test_a_long_text_of_usual_code_is_parsed(after):
    root = LimitedParser(RUST).root(CALLS * 5000 + after)
    assert root is not None
    assert not root.has_error


def test_no_character_is_cut_where_the_parser_reads_in_pieces():
    for length in range(4080, 4110):
        for tail in ("é", "€", "𝄞", "é€𝄞", "𝄞=", "é = 1"):
            text = "#".ljust(length, "é") + f"\nlet x{tail}"
            root = LimitedParser(RUST).root(text)
            assert str(root) == str(Parser(RUST).parse(text.encode()).root_node)
            assert root.end_byte == len(text.encode())


def test_texts_that_were_parsed_are_freed():
    """tree-sitter keeps every object that it has read through a function."""
    num, length = 15, 100_000

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
