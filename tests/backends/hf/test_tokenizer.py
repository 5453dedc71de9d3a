"""A checkpoint's tokenizer: text is text, whatever it spells, and bytes come back as they went in."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dg_lsp.backends.hf.tokenizer import HfTokenizer
from dg_lsp.errors import ModelBrokenError, RequestError
from dg_lsp.models.metadata import read_folder


@pytest.fixture(scope="module")
def tokenizer(tiny_checkpoint):
    checkpoint, spec = read_folder(tiny_checkpoint)
    return HfTokenizer(tiny_checkpoint, checkpoint.special_ids, spec.vocab_size)


@given(text=st.text(max_size=60))
def test_text_comes_back(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text.encode("utf-8", "replace")


@pytest.mark.parametrize("text", ["", " ", "  x", "def f(self):\n\treturn 'é☃😀'\r\n", "\ud800", "a\0b"])
def test_odd_texts_come_back(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text.encode("utf-8", "replace")


@pytest.mark.parametrize("spelling", ["<bos>", "<eos>", "<|turn>", "<turn|>", "<|channel>", "<pad>", "<|image|>"])
def test_the_spelling_of_a_special_token_is_not_that_token(tokenizer, spelling):
    token = tokenizer.special(spelling)
    assert token is not None
    ids = tokenizer.encode(f"x = '{spelling}'")
    assert token not in ids.tolist()
    assert tokenizer.decode(ids) == f"x = '{spelling}'".encode()
    assert tokenizer.decode(np.array([token], np.int32)) == b""


def test_there_is_no_token_of_another_spelling(tokenizer):
    assert tokenizer.special("<|nothing|>") is None


def test_an_id_outside_the_vocabulary_is_refused(tokenizer):
    with pytest.raises(RequestError):
        tokenizer.decode(np.array([10**6]))


def test_a_byte_level_vocabulary_decodes_to_bytes(tmp_path):
    letters = {"Ġ": 0, "a": 1, "Ã": 2, "©": 3, "Ċ": 4}
    tree = {"version": "1.0", "added_tokens": [], "normalizer": None, "decoder": {"type": "ByteLevel"}}
    tree["decoder"] |= {"add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tree["pre_tokenizer"] = tree["decoder"]
    tree["model"] = {"type": "BPE", "vocab": letters, "merges": []}
    (tmp_path / "tokenizer.json").write_text(json.dumps(tree), encoding="utf-8")
    tokenizer = HfTokenizer(tmp_path, frozenset(), 5)
    assert tokenizer.encode("é a\n").tolist() == [2, 3, 0, 1, 4]
    assert tokenizer.decode(np.array([2, 3, 0, 1, 4])) == "é a\n".encode()
    assert tokenizer.decode(np.array([2])) == b"\xc3"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"model": 3}'])
def test_a_damaged_file_is_told(tmp_path, content):
    (tmp_path / "tokenizer.json").write_text(content, encoding="utf-8")
    with pytest.raises(ModelBrokenError, match="download"):
        HfTokenizer(tmp_path, frozenset(), 5)
