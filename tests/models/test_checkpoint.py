"""tokenizer.json as llama.cpp's vocabulary: equal ids for equal texts."""

import json

import pytest
import tiny_diffusiongemma
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from dg_lsp.backends.llamacpp.library import library
from dg_lsp.models.checkpoint import vocabulary

SIZE = tiny_diffusiongemma.VOCAB_SIZE


@pytest.fixture(scope="module")
def tokenize(tiny_repacked):
    api = library().api
    params = api.llama_model_default_params()
    params.vocab_only = True
    model = api.llama_model_load_from_file(bytes(tiny_repacked), params)
    ids = (api.llama_token * 1000)()

    def call(text):
        data = text.encode()
        count = api.llama_tokenize(api.llama_model_get_vocab(model), data, len(data), ids, len(ids), True, True)
        return ids[:count]

    yield call
    api.llama_model_free(model)


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
def test_llama_cpp_gives_the_ids_of_the_checkpoints_tokenizer(tokenize, text):
    reference = Tokenizer.from_str(json.dumps(tiny_diffusiongemma.tokenizer_json()))
    text = f"<|turn>user\n{text}<turn|>"
    assert tokenize(text) == reference.encode(text).ids
