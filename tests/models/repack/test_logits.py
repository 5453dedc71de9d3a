"""What is repacked computes what the direct conversion computes, and that what transformers computes."""

import ctypes

import numpy as np
import pytest
import tiny_diffusiongemma
import torch
from margins import lead
from transformers import DiffusionGemmaForBlockDiffusion

from dg_lsp.backends.llamacpp.library import library
from dg_lsp.models.convert import read_gguf, write_model

IDS = np.random.default_rng(5).integers(0, tiny_diffusiongemma.VOCAB_SIZE, 100).tolist()  # the window is 64


@pytest.fixture(scope="module")
def direct(tiny_repacked):
    return causal_logits(tiny_repacked, IDS)


def test_either_naming_gives_the_logits_of_the_direct_conversion(direct, pull_request_gguf, tmp_path):
    write_model(read_gguf(pull_request_gguf), tmp_path / "repacked.gguf")
    assert np.array_equal(causal_logits(tmp_path / "repacked.gguf", IDS), direct)


def test_the_direct_conversion_gives_the_logits_of_the_reference(direct, tiny_checkpoint):
    """The encoder reads causally. llama.cpp looks GELU up in a table of half precision; random layers amplify that."""
    torch.set_num_threads(1)
    model = DiffusionGemmaForBlockDiffusion.from_pretrained(tiny_checkpoint, dtype=torch.float32).eval()
    with torch.no_grad():
        hidden = model.model.encoder(input_ids=torch.tensor([IDS])).last_hidden_state
        logits = (30 * torch.tanh(hidden @ model.model.decoder.embed_tokens.weight.T / 30))[0].numpy()
    assert logits.std() > 0.5
    assert root_mean_square(direct - logits) < 0.02
    assert lead(logits, direct.argmax(axis=1)).max() < 0.2


def test_half_precision_gives_nearly_the_same_logits(direct, tiny_checkpoint, tmp_path):
    target = tiny_diffusiongemma.write_repacked(tiny_checkpoint, tmp_path / "smaller.gguf", "F16")
    assert 0 < root_mean_square(causal_logits(target, IDS) - direct) < 0.1


def root_mean_square(values):
    return np.sqrt(np.mean(values**2))


def causal_logits(path, ids):
    """float32 (len(ids), vocabulary): one causal pass on one thread, straight through llama.cpp's C functions."""
    api = library().api
    options = api.llama_model_default_params()
    options.use_extra_bufts = False  # see Library.has_tiles
    model = api.llama_model_load_from_file(bytes(path), options)
    assert model, path
    params = api.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = 256
    params.n_threads = params.n_threads_batch = 1
    params.type_k = params.type_v = 0  # float32
    params.swa_full, params.flash_attn_type = True, 0
    context = api.llama_init_from_model(model, params)
    batch = api.llama_batch_init(len(ids), 0, 1)
    try:
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, i, 1, 1
            batch.seq_id[i][0] = 0
        assert api.llama_decode(context, batch) == 0
        width = api.llama_vocab_n_tokens(api.llama_model_get_vocab(model))
        logits = ctypes.cast(api.llama_get_logits(context), ctypes.POINTER(ctypes.c_float))
        return np.ctypeslib.as_array(logits, (len(ids), width)).copy()
    finally:
        api.llama_batch_free(batch)
        api.llama_free(context)
        api.llama_model_free(model)
