"""The tokenizer of a checkpoint encodes special spellings as text and decodes to the same bytes."""

import json

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dg_lsp.backends.transformers.loader import CheckpointTokenizer
from dg_lsp.errors import ModelBrokenError, RequestError
from dg_lsp.models.metadata import read_folder


@pytest.fixture(scope="module")
def tokenizer(tiny_checkpoint):
    checkpoint, spec = read_folder(tiny_checkpoint)
    return CheckpointTokenizer(tiny_checkpoint, checkpoint.special_ids, spec.vocab_size)


# SentencePiece writes a space as U+2581, so this character itself decodes to a space
@given(text=st.text(st.characters(codec="utf-8", exclude_characters="\u2581"), max_size=60))
@example("")
@example("  x")
@example("def f(self):\n\treturn 'é☃😀'\r\n")
@example("\ud800")
@example("a\0b")
def test_decoding_returns_the_encoded_text(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text.encode("utf-8", "replace")


@pytest.mark.parametrize("spelling", ["<bos>", "<eos>", "<|turn>", "<turn|>", "<|channel>", "<pad>", "<|image|>"])
def test_the_spelling_of_a_special_token_is_encoded_as_text(tokenizer, spelling):
    token = tokenizer.special(spelling)
    ids = tokenizer.encode(f"x = '{spelling}'")
    assert token is not None and token not in ids.tolist()
    assert tokenizer.decode(ids) == f"x = '{spelling}'".encode()
    assert tokenizer.decode(np.array([token], np.int32)) == b""
    assert tokenizer.special("<|nothing|>") is None


def test_an_id_outside_the_vocabulary_is_refused(tokenizer):
    with pytest.raises(RequestError):
        tokenizer.decode(np.array([10**6]))


def test_a_byte_level_vocabulary_decodes_to_bytes(tmp_path):
    letters = {"Ġ": 0, "a": 1, "Ã": 2, "©": 3, "Ċ": 4}
    decoder = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "vocab": letters, "merges": []}
    tree = {"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": decoder, "decoder": decoder}
    (tmp_path / "tokenizer.json").write_text(json.dumps({**tree, "model": model}), encoding="utf-8")
    tokenizer = CheckpointTokenizer(tmp_path, frozenset(), 5)
    assert tokenizer.encode("é a\n").tolist() == [2, 3, 0, 1, 4]
    assert tokenizer.decode(np.array([2, 3, 0, 1, 4])) == "é a\n".encode()
    assert tokenizer.decode(np.array([2])) == b"\xc3"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"model": 3}'])
def test_a_damaged_file_is_reported(tmp_path, content):
    (tmp_path / "tokenizer.json").write_text(content, encoding="utf-8")
    with pytest.raises(ModelBrokenError, match="download"):
        CheckpointTokenizer(tmp_path, frozenset(), 5)
