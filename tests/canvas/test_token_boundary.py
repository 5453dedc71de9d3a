"""The safe token boundary before a cursor, and the tokens that spell what the prompt lacks."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dg_lsp.canvas.layout import TokenIndex, back_up, token_ids, unit_start

PIECES = [
    b"<end>",
    *(bytes([byte]) for byte in range(256)),
    *(b"\n   ", b"\n       ", b"    ", b" return", b" re", b"return", b"turn", b"foo", b"foo_bar", b"):\n"),
    "é".encode(),
    "\N{SNAKE}".encode()[:3],
]
PIECES[0] = b""
BY_LENGTH = re.compile(b"|".join(map(re.escape, sorted(filter(None, PIECES), key=len, reverse=True))), re.DOTALL)


def encode(text):
    """The longest token at each byte, which is no tokenizer's rule but one that joins text across a cursor."""
    return token_ids([PIECES.index(piece) for piece in BY_LENGTH.findall(text.encode())])


def decode(ids):
    return b"".join(PIECES[token] for token in ids.tolist())


@pytest.mark.parametrize(
    ("text", "kept", "removed"),
    [
        pytest.param("", "", "", id="empty text"),
        pytest.param("retur", "", "retur", id="all"),
        pytest.param("x = foo_bar", "x = ", "foo_bar", id="token longer than the unit"),
        pytest.param("x = foo_ba", "x = foo_", "ba", id="identifier"),
        pytest.param("f():\n    ", "f(", "):\n    ", id="token across the start of the unit"),
        pytest.param("f\n        return", "f\n       ", " return", id="word after an indentation"),
        pytest.param("# \N{SNAKE}", "#", " \N{SNAKE}", id="character of several tokens"),
        pytest.param("a" * 100, "a" * 36, "a" * 64, id="end of a long line of one letter"),
    ],
)
def test_backed_up_prompt_ends_before_the_unit(text, kept, removed):
    ids, missing = back_up(encode(text), text, decode)
    assert (decode(ids).decode(), missing.decode()) == (kept, removed)


@given(st.text(alphabet="ab_ \n().=\u00e9\N{SNAKE}", max_size=40))
def test_backed_up_prompt_and_removed_text_are_the_text(text):
    ids, removed = back_up(encode(text), text, decode)
    assert decode(ids) + removed == text.encode()
    assert len(decode(ids)) <= len(text[: unit_start(text)].encode())


def test_tokens_that_do_not_spell_the_text_are_kept():
    ids = encode("x = 1")
    assert back_up(ids, "X = 2", decode)[0].tolist() == ids.tolist()


def test_lone_surrogate_is_removed_as_it_is_encoded():
    assert back_up(encode("x = ?"), "x = \ud800", decode)[1] == b" ?"


@pytest.mark.parametrize("text", [b" ", b" re", b" return", b"\n    ", b"foo_b", "\N{SNAKE}".encode(), b"zz"])
def test_tokens_that_spell_a_text(text):
    wanted = [i for i, piece in enumerate(PIECES) if piece and (piece.startswith(text) or text.startswith(piece))]
    assert sorted(TokenIndex(PIECES).spelling(text).tolist()) == wanted
