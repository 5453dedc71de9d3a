"""The tokenizer taken out of a GGUF is the one that was put in, and llama.cpp's."""

import hashlib
import json
from pathlib import Path

import gguf
import pytest

pytest.importorskip("tokenizers")

import dg_lsp
from dg_lsp.settings import RuntimeSettings
from dg_lsp.training.prepare import MANIFEST
from dg_lsp.training.tokenizer import load_tokenizer, tokenizer_of
from dg_lsp.training.vocabulary import NUM_TOKENS, PRE_TOKENIZER, SPECIALS

from .conftest import sample_files

BUNDLED = Path(dg_lsp.__file__).parent / "models" / "dg-mini.gguf"


@pytest.fixture(scope="module")
def tokenizer():
    return tokenizer_of(BUNDLED)


def test_the_bundled_models_tokenizer_is_the_manifests_to_the_byte(tokenizer, tmp_path):
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    digest = hashlib.sha256((tmp_path / "tokenizer.json").read_bytes()).hexdigest()
    assert digest == json.loads(MANIFEST.read_text())["tokenizer_sha256"]
    assert load_tokenizer(tmp_path / "tokenizer.json").get_vocab_size() == NUM_TOKENS


def test_real_code_has_the_same_ids_in_training_and_in_llama_cpp(tokenizer):
    pytest.importorskip("llama_cpp")
    from dg_lsp.backends.llamacpp.model import LlamaModel

    model = LlamaModel.load(BUNDLED, RuntimeSettings(threads=1, gpu_layers=0))
    for file in sample_files()[::12]:
        assert model.tokenizer.encode(file.text).tolist() == tokenizer.encode(file.text).ids, file.path


@pytest.mark.parametrize(("pre", "first"), [("gpt-2", SPECIALS[0]), (PRE_TOKENIZER, "<s>")])
def test_another_models_tokenizer_is_refused(tmp_path, pre, first):
    writer = gguf.GGUFWriter(tmp_path / "other.gguf", "qwen3")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([first, *SPECIALS[1:], "a", "b", "ab"])
    writer.add_token_types([gguf.TokenType.NORMAL] * (len(SPECIALS) + 3))
    writer.add_token_merges(["a b"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ValueError, match="--new-tokenizer"):
        tokenizer_of(tmp_path / "other.gguf")
