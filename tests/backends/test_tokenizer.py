"""Text to ids and back, for the tokenizer of every backend."""

import json

import numpy as np
import pytest
import tiny_vocabulary
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scripted import ByteTokenizer

from dg_lsp.backends.llamacpp import LlamaModel
from dg_lsp.backends.transformers.denoiser import CheckpointTokenizer
from dg_lsp.errors import BackendError, ModelError
from dg_lsp.models.metadata import read_folder
from dg_lsp.settings import ModelSettings

SPECIALS = {
    "scripted": {"<mask>": 0, "<end>": 1, "<middle>": 4},
    "llamacpp": {f"<|{name}|>": i for i, name in enumerate(("mask", "end", "prefix", "suffix", "middle"))},
    "transformers": {"<pad>": 0, "<eos>": 1, "<bos>": 2, "<|turn>": 105, "<|image>": 509},
}


@pytest.fixture(scope="module", params=SPECIALS)
def backend(request):
    """The name of a backend, and a tokenizer."""
    if request.param == "scripted":
        yield request.param, ByteTokenizer()
    elif request.param == "transformers":
        folder = request.getfixturevalue("tiny_checkpoint")
        checkpoint, spec = read_folder(folder)
        yield request.param, CheckpointTokenizer(folder, checkpoint.special_ids, spec.vocab_size)
    else:
        model = LlamaModel(request.getfixturevalue("tiny_path"), ModelSettings(threads=1, gpu_layers=0))
        yield request.param, model.tokenizer
        model.close()


# SentencePiece writes a space as U+2581, so this character itself decodes to a space
@settings(max_examples=200)
@given(text=st.text(st.characters(codec="utf-8", exclude_characters="\u2581"), max_size=60))
@example("")
@example("<|mask|><|end|><mask><bos><|turn><pad>")
@example("self\t self\r\n\r self  \n")
@example("a\0b é😋\u2028\x0c")
@example("a\ud800b")
@example("(" * 20_000)
@example(" " * 20_000)
def test_decoding_returns_the_encoded_text_without_special_tokens(backend, text):
    name, tokenizer = backend
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text.encode("utf-8", "replace")
    assert not {*SPECIALS[name].values()} & {*ids.tolist()}


@pytest.mark.parametrize("splitter", ["deepseek-coder", "default"])
def test_a_word_of_100_000_letters_does_not_overflow_the_stack(open_vocabulary, splitter):
    _, tokenizer = open_vocabulary(tiny_vocabulary.Model(()), tokenizer__ggml__pre=splitter)
    for char in "a é\n!":
        text = f"x = {100_000 * char}"
        assert tokenizer.decode(tokenizer.encode(text)).decode() == text
    assert tokenizer.special(text) is None


def test_a_panic_of_the_tokenizer_is_an_error_of_the_backend(tiny_checkpoint, tmp_path, capfd):
    tree = json.loads((tiny_checkpoint / "tokenizer.json").read_text())
    tree["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": "AAAAAAAA"}  # an empty table
    (tmp_path / "tokenizer.json").write_text(json.dumps(tree))
    with pytest.raises(BackendError, match="the text cannot be tokenized"):
        CheckpointTokenizer(tmp_path, frozenset(), 512).encode("é")
    assert "panicked" in capfd.readouterr().err


def test_pieces_are_the_bytes_of_all_tokens(backend):
    _, tokenizer = backend
    pieces = tokenizer.pieces()
    assert pieces == [tokenizer.decode(np.array([token], np.int32)) for token in range(len(pieces))]
    assert {*map(bytes, np.arange(256, dtype=np.uint8)[:, None])} <= {*pieces}


def test_special_token_is_found_by_its_spelling_and_decodes_to_nothing(backend):
    name, tokenizer = backend
    assert {spelling: tokenizer.special(spelling) for spelling in SPECIALS[name]} == SPECIALS[name]
    assert tokenizer.decode(np.array([*SPECIALS[name].values()], np.int32)) == b""
    assert tokenizer.special("<|no such token|>") is tokenizer.special("") is tokenizer.special("\ud800x") is None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"model": 3}'])
def test_damaged_file_is_reported(tmp_path, content):
    (tmp_path / "tokenizer.json").write_text(content, encoding="utf-8")
    with pytest.raises(ModelError, match="download"):
        CheckpointTokenizer(tmp_path, frozenset(), 5)
