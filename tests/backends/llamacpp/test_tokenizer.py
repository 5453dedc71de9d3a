"""Text to ids and back."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dg_lsp.backends.llamacpp import LlamaModel
from dg_lsp.errors import RequestError
from dg_lsp.settings import ModelSettings


@pytest.fixture(scope="module")
def tokenizer(tiny_path):
    model = LlamaModel.load(tiny_path, ModelSettings(threads=1, gpu_layers=0))
    yield model.tokenizer
    model.close()


@settings(deadline=None, max_examples=300)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
@example("<|mask|><|end|><|prefix|>")
@example("self\t self\r\n\r self  \n")
@example("a\0b é😋\u2028\x0c")
@example("(" * 20_000)
@example(" " * 20_000)
def test_any_text_survives_a_round_trip_without_special_tokens(tokenizer, text):
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids).decode() == text
    assert not (ids < 5).any()


def test_merges_are_used(tokenizer):
    assert len(tokenizer.encode("self")) == 1


def test_lone_surrogate_becomes_a_question_mark(tokenizer):
    assert tokenizer.decode(tokenizer.encode("a\ud800b")) == b"a?b"


def test_part_of_a_character_decodes_to_bytes(tokenizer):
    ids = tokenizer.encode("😋")
    assert tokenizer.decode(ids[:1]) + tokenizer.decode(ids[1:]) == "😋".encode()


@pytest.mark.parametrize("ids", [[-1], [268], [2**33]])
def test_ids_outside_the_vocabulary_are_refused(tokenizer, ids):
    with pytest.raises(RequestError):
        tokenizer.decode(np.array(ids))


def test_special_token_is_found_by_its_spelling_and_never_in_text(tokenizer):
    specials = [tokenizer.special(f"<|{name}|>") for name in ("mask", "end", "prefix", "suffix", "middle")]
    assert specials == [0, 1, 2, 3, 4]
    assert tokenizer.decode(np.array(specials, np.int32)) == b""
    assert tokenizer.special("<|no such token|>") is None
    assert tokenizer.special("") is None
