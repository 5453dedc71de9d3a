"""A random tiny model in torch and in llama.cpp: the same tokens, the same logits, and the file's metadata."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from dg_lsp.backends.llamacpp.context import LlamaContext
from dg_lsp.backends.llamacpp.memory_estimate import ContextBudget
from dg_lsp.backends.llamacpp.model import LlamaModel
from dg_lsp.canvas.layout import token_ids
from dg_lsp.canvas.spec import DecoderName, ExpectedPasses
from dg_lsp.errors import InputFileError, ModelBrokenError, ModelNotFoundError
from dg_lsp.models.metadata import describe
from dg_lsp.settings import ModelSettings
from dg_training import tokenizer as vocabulary
from dg_training.export import ExportMetadata, read_model, training_progress, write_model
from dg_training.network import DiffusionNetwork
from dg_training.tokenizer import tokenizer_from_gguf

CPU = ModelSettings(threads=1, gpu_layers=0)
STATISTICS = {"line-end.causal": "5.8,0,0,0.31", "block.canvas": "0,0,9.5,0.2"}


@pytest.fixture(scope="module")
def network(toy):
    torch.manual_seed(11)
    network = DiffusionNetwork(toy.config.network).eval()
    with torch.no_grad():
        for weight in network.parameters():
            weight.add_(0.3 * torch.randn_like(weight))  # norms that are not ones, logits that are not flat
    return network


@pytest.fixture(scope="module")
def folder(toy, network, tmp_path_factory):
    """One file of each type."""
    folder = tmp_path_factory.mktemp("gguf")
    metadata = ExportMetadata("tiny", (16, 8, 64, 32), 319, 1234567, decoder_statistics=STATISTICS)
    for file_type in ("F32", "F16", "Q8_0"):
        write_model(folder / f"{file_type}.gguf", network, toy.tokenizer, metadata, file_type)
    return folder


def llama_logits(context, ids, start, *, causal):
    ids = token_ids(ids)
    positions = np.arange(start, start + len(ids), dtype=np.int32)
    context.batch.put(ids, positions, np.zeros_like(positions), 1)
    assert context.decode(causal=causal) == 0
    return context.logits(len(ids)).copy()


def torch_logits(network, prompt, canvas):
    """Of a causal prompt, then of a canvas that sees the prompt and itself."""
    n, m = len(prompt), len(canvas)
    mask = torch.ones(n + m, n + m, dtype=torch.bool).tril()
    mask[n:] = True
    ids = torch.tensor([*prompt, *canvas])[None]
    with torch.no_grad():
        states = network.hidden(ids, torch.arange(n + m)[None], mask[None, None])[0]
        return (states @ network.token_embd.weight.T).numpy()


@pytest.mark.parametrize(("file_type", "tolerance"), [("F32", 0.05), ("F16", 0.1)])
def test_torch_and_llama_cpp_compute_the_same_logits(file_type, tolerance, network, folder):
    rng = np.random.default_rng(2)
    ids = [rng.integers(16, 512, n) for n in (40, 60)]
    prompt = [vocabulary.SUFFIX, *ids[0], vocabulary.PREFIX, *ids[1], vocabulary.MIDDLE]
    canvas = rng.integers(16, 512, 16)
    canvas[::2] = vocabulary.MASK
    expected = torch_logits(network, prompt, canvas)
    limit = tolerance * expected.std()
    model = LlamaModel.load(folder / f"{file_type}.gguf", CPU)
    size = len(prompt) + len(canvas)
    context = LlamaContext(model, ContextBudget(512, 512, size, size, size, 1, len(prompt)), flash_attention=False)
    of_prompt = llama_logits(context, prompt, 0, causal=True)
    assert np.abs(of_prompt - expected[: len(prompt)]).max() < limit
    for _ in range(2):  # the second time after the first canvas was removed from the cache
        of_canvas = llama_logits(context, canvas, len(prompt), causal=False)
        context.crop(0, len(prompt))
        assert np.abs(of_canvas - expected[len(prompt) :]).max() < limit
    # the attention of the canvas is really bidirectional: a causal pass differs
    of_canvas = llama_logits(context, canvas, len(prompt), causal=True)
    assert np.abs(of_canvas[0] - expected[len(prompt)]).max() > limit
    context.close()
    model.close()


def test_the_product_reads_the_metadata(folder):
    model = LlamaModel.load(folder / "F32.gguf", CPU)
    spec = describe(model.metadata, model.vocab_size, "dg-mini")
    assert spec.canvas_lengths == (8, 16, 32, 64)
    assert spec.max_prompt_tokens == 319
    assert spec.end_ids == (vocabulary.END_OF_MIDDLE,)
    assert spec.banned_ids == vocabulary.BANNED_IDS
    assert spec.has_causal_head
    assert spec.repetition_match == 3
    assert {"python", "typescript", "go"} <= set(spec.languages)
    assert model.metadata["dg.cut"] == "token"
    assert spec.expectations == (
        ExpectedPasses("block", DecoderName.DIFFUSION, 0.0, 0.0, 9.5, 0.2),
        ExpectedPasses("line-end", DecoderName.AUTOREGRESSIVE, 5.8, 0.0, 0.0, 0.31),
    )
    assert model.metadata["dg.config"] == "tiny"
    assert model.metadata["general.name"] == "dg-mini"
    assert "general.license" in model.metadata
    names = {"fim_pre": vocabulary.PREFIX, "fim_suf": vocabulary.SUFFIX, "fim_mid": vocabulary.MIDDLE}
    names |= {"mask": vocabulary.MASK, "eot": vocabulary.END_OF_MIDDLE}  # llama-server's keys
    assert {name: int(model.metadata[f"tokenizer.ggml.{name}_token_id"]) for name in names} == names
    model.close()


def test_weights_tokens_seen_and_tokenizer_survive_a_file(toy, network, folder):
    read = read_model(folder / "F32.gguf", toy.config.network)
    assert training_progress(folder / "F32.gguf") == (0, 1234567, 0.0)
    for name, weight in network.state_dict().items():
        assert torch.equal(weight, read.state_dict()[name])
    assert tokenizer_from_gguf(folder / "F32.gguf").to_str() == toy.tokenizer.to_str()


def test_a_quantized_file_survives_being_read_and_written(toy, folder, tmp_path):
    read = read_model(folder / "Q8_0.gguf", toy.config.network)
    metadata = ExportMetadata("tiny", (16, 8, 64, 32), 319, 1234567, decoder_statistics=STATISTICS)
    write_model(tmp_path / "again.gguf", read, toy.tokenizer, metadata, "Q8_0")
    assert (tmp_path / "again.gguf").read_bytes() == (folder / "Q8_0.gguf").read_bytes()


def test_a_file_of_another_size_is_refused(toy, folder):
    with pytest.raises(InputFileError, match="does not hold weights"):
        read_model(folder / "F16.gguf", replace(toy.config.network, layers=3))


@pytest.mark.parametrize("read", [read_model, lambda path, _: tokenizer_from_gguf(path)])
@pytest.mark.parametrize(("content", "error"), [(b"no model", ModelBrokenError), (None, ModelNotFoundError)])
def test_a_file_that_is_no_model_is_refused(toy, tmp_path, read, content, error):
    path = tmp_path / "a.gguf"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(error, match=r"a\.gguf"):
        read(path, toy.config.network)
