"""tokenizer.json as llama.cpp's vocabulary: equal ids for equal texts."""

import json
from contextlib import closing

import pytest
import tiny_diffusiongemma
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from dg_lsp.backends.llamacpp import LlamaModel
from dg_lsp.models.checkpoint import vocabulary
from dg_lsp.settings import ModelSettings

SIZE = tiny_diffusiongemma.VOCAB_SIZE


@pytest.fixture(scope="module")
def tokenizer(tiny_repacked):
    with closing(LlamaModel(tiny_repacked, ModelSettings(threads=1, gpu_layers=0))) as model:
        yield model.tokenizer


@pytest.mark.parametrize("change", [{"type": "Unigram"}, {"byte_fallback": False}, {"vocab": {"a": SIZE}}])
def test_another_tokenizer_is_refused(change):
    tokenizer = tiny_diffusiongemma.tokenizer_json()
    tokenizer["model"] |= change
    with pytest.raises(ValueError, match=r"not a BPE|token 512 of 512"):
        vocabulary(tokenizer, SIZE)


@given(
    st.text(
        st.characters(blacklist_categories=("Cs", "Cc"), blacklist_characters="▁<>|") | st.sampled_from("\n\t\r"),
        max_size=60,
    )
)
def test_llama_cpp_gives_the_ids_of_the_checkpoints_tokenizer(tokenizer, text):
    reference = Tokenizer.from_str(json.dumps(tiny_diffusiongemma.tokenizer_json()))
    text = f"user\n{text}"
    assert tokenizer.encode(text).tolist() == reference.encode(text, add_special_tokens=False).ids
    assert tokenizer.special("<|turn>") == reference.token_to_id("<|turn>")
