"""What plans take travels in the model's file."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("gguf")
pytest.importorskip("tokenizers")

from dg_lsp.backends.llamacpp.model import LlamaModel
from dg_lsp.canvas.expectation import Expectation
from dg_lsp.models.description import describe
from dg_lsp.settings import RuntimeSettings
from dg_lsp.training.gguf_file import Description, write_gguf
from dg_lsp.training.network import Network


def test_what_is_written_is_what_the_planner_gets(toy, tmp_path):
    path = tmp_path / "toy.gguf"
    plans = {"line-end.causal": "5.8,0,0,0.31", "block.canvas": "0,0,9.5,0.2"}
    write_gguf(
        path, Network(toy.config.network).eval(), toy.tokenizer, Description("tiny", (8, 16), 96, 0, plans=plans)
    )
    model = LlamaModel.load(path, RuntimeSettings(threads=1, gpu_layers=0))
    spec = describe(model.metadata, model.vocab_size, "toy")
    model.close()
    assert spec.expectations == (
        Expectation("block", "canvas", 0.0, 0.0, 9.5, 0.2),
        Expectation("line-end", "causal", 5.8, 0.0, 0.0, 0.31),
    )
