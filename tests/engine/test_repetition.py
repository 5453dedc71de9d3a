"""Confident n-grams of the buffer, and fills that they override."""

from dataclasses import replace
from unittest.mock import Mock

import pytest
from scripted import MASK_SPEC, ByteTokenizer

from dg_lsp.canvas.layout import NOTHING, token_ids
from dg_lsp.canvas.spec import DecoderName
from dg_lsp.engine.repetition import BufferTokens, Repetition


def following(before, fill=(), after=()):
    match = Repetition(token_ids(before), token_ids(after)).following(token_ids(fill))
    return match and match.token


@pytest.mark.parametrize(
    ("before", "fill", "after", "expected"),
    [
        pytest.param([1, 2, 3, 4, 9, 1, 2, 3, 4, 8, 1, 2, 3], [], [], 4, id="three tokens that occurred twice"),
        pytest.param([1, 2, 3, 4, 9, 1, 2, 3], [], [], None, id="three tokens that occurred once are not enough"),
        pytest.param([1, 2, 3, 4, 5, 6, 9, 1, 2, 3, 4, 5], [], [], 6, id="five tokens that occurred once are enough"),
        pytest.param([1, 2, 3, 4, 9, 1, 2, 3, 4, 8, 1, 2], [3], [], 4, id="the fill is part of the match"),
        pytest.param([7, 1, 2, 3], [], [5, 1, 2, 3, 8, 6, 1, 2, 3, 8], 8, id="text after the cursor is searched"),
        pytest.param([2, 3, 4, 9, 2, 3, 4, 8, 2, 3], [], [], None, id="two tokens are not enough"),
        pytest.param([1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3], [], [], None, id="two different continuations"),
        pytest.param([0, 1, 2, 3, 4, 9, 0, 1, 2, 3, 4, 7, 1, 2, 3, 5, 0, 1, 2, 3], [], [], 4, id="longest match"),
        pytest.param([1, 2, 3], [], [1, 2, 3], None, id="no match across the cursor"),
        pytest.param([], [], [], None, id="an empty buffer"),
        pytest.param([], [], [1, 2, 3, 4], None, id="nothing before the cursor"),
    ],
)
def test_the_token_that_followed_the_same_tokens(before, fill, after, expected):
    assert following(before, fill, after) == expected


def test_repetition_ends_with_the_first_line_of_a_fill():
    before = token_ids([1, 2, 3, 4, 5, 9, 1, 2, 3, 4, 5, 8, 1, 2, 3])
    repetition = Repetition(before, NOTHING, ends_line=lambda token: token == 4)
    assert repetition.run(NOTHING, 8).tolist() == [4]
    assert repetition.following(token_ids([4])) is None


def test_a_keystroke_tokenizes_one_line():
    tokenizer = Mock(wraps=ByteTokenizer())
    buffers = BufferTokens(tokenizer)
    text = "first\n" + "x y\n" * 50 + "first\n" + "firs"
    assert tokenizer.decode(buffers.repetition(text, len(text)).run(NOTHING, 1)) == b"t"
    tokenizer.encode.reset_mock()
    buffers.repetition(f"{text}t", len(text) + 1)
    tokenizer.encode.assert_called_once_with("first")


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        pytest.param(replace(MASK_SPEC, repetition_match=3), "pha1;", id="a model that repetition helps"),
        pytest.param(MASK_SPEC, "zz", id="a model that needs no help"),
    ],
)
@pytest.mark.parametrize("decoder", [DecoderName.DIFFUSION, DecoderName.AUTOREGRESSIVE, DecoderName.PROMPT_LOOKUP])
def test_buffer_overrides_the_model_only_where_its_file_wants_it(engine_of, ask, decoder, spec, text):
    engine, _ = engine_of("zz", spec=spec)
    assert engine.fill(ask("\nalpha1;x\nalpha1;y\nal|\n", decoder=decoder, max_lines=1)).text == text
