"""Files of a random tiny network: their metadata and weights."""

from contextlib import closing

import gguf
import numpy as np
import pytest
import torch
from tiny_causal import shape_values

from dg_lsp.backends.llamacpp.model import LlamaModel
from dg_lsp.gguf import read_header, text
from dg_lsp.models.metadata import describe
from dg_lsp.settings import ModelSettings
from dg_training import tokenizer as vocabulary
from dg_training.export import write_model
from dg_training.network import DiffusionNetwork
from dg_training.pretrained import LICENCE, Pretrained, TrainingProgress, dequantized, read_pretrained

PROGRESS = TrainingProgress(step=7, tokens=1234567, seconds=2.5)


@pytest.fixture(scope="module")
def network(toy):
    torch.manual_seed(11)
    return DiffusionNetwork(toy.network).eval()


def write(path, toy, network, file_type="F32"):
    values = {**shape_values(toy.network, 512), LICENCE: text("apache-2.0")}
    source = Pretrained(None, "source", toy.network, toy.vocabulary, values, TrainingProgress())
    write_model(path, network, toy.vocabulary, source, toy.rows.config, PROGRESS, name="tiny", file_type=file_type)
    return path


def test_the_product_reads_the_metadata(toy, network, tmp_path):
    path = write(tmp_path / "a.gguf", toy, network)
    with closing(LlamaModel(path, ModelSettings(threads=1, gpu_layers=0))) as model:
        spec = describe(model.metadata, model.vocab_size, "tiny")
        metadata = model.metadata
    assert spec.canvas_lengths == (8, 16)
    assert spec.max_prompt_tokens == 223
    assert spec.end_ids == (vocabulary.END_OF_MIDDLE,)
    assert spec.banned_ids == vocabulary.BANNED_IDS
    assert spec.has_causal_head
    assert spec.is_shifted
    assert {"python", "typescript", "go"} <= set(spec.languages)
    texts = ("dg.cut", "dg.config", "general.name", "general.license", "general.base_model.0.name")
    assert [metadata[key] for key in texts] == ["token", "adapt", "tiny", "apache-2.0", "source"]
    names = {"fim_pre": vocabulary.PREFIX, "fim_suf": vocabulary.SUFFIX, "fim_mid": vocabulary.MIDDLE}
    names |= {"mask": vocabulary.MASK, "eot": vocabulary.END_OF_MIDDLE}  # llama-server's keys
    assert {name: int(metadata[f"tokenizer.ggml.{name}_token_id"]) for name in names} == names
    assert read_pretrained(path).progress == PROGRESS


@pytest.mark.parametrize(("file_type", "tolerance"), [("F32", 0.0), ("F16", 1e-3), ("Q8_0", 0.02), ("IQ4_NL", 0.2)])
def test_a_file_has_the_weights_in_its_format(toy, network, tmp_path, file_type, tolerance):
    header = read_header(write(tmp_path / "a.gguf", toy, network, file_type))
    assert header.values["general.file_type"].read() == (
        gguf.LlamaFileType.ALL_F32 if file_type == "F32" else gguf.LlamaFileType[f"MOSTLY_{file_type}"]
    )
    for name, weight in network.state_dict().items():
        difference = np.abs(dequantized(header, name) - weight.numpy())
        assert difference.max() <= tolerance * weight.abs().max().item()
