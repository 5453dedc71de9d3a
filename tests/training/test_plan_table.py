"""What plans take travels in the model's file."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("gguf")
pytest.importorskip("tokenizers")

from dg_lsp.backends.llamacpp.model import LlamaModel
from dg_lsp.backends.scripted import ScriptedDenoiser
from dg_lsp.bench.sites import Site
from dg_lsp.canvas.spec import ExpectedPasses
from dg_lsp.models.metadata import describe
from dg_lsp.settings import RuntimeSettings
from dg_lsp.training.gguf_file import Description, write_gguf
from dg_lsp.training.network import Network
from dg_lsp.training.plan_table import plan_table


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
        ExpectedPasses("block", "diffusion", 0.0, 0.0, 9.5, 0.2),
        ExpectedPasses("line-end", "autoregressive", 5.8, 0.0, 0.0, 0.31),
    )


def test_passes_are_counted_by_their_sort():
    denoiser = ScriptedDenoiser("total_price", tokens_per_step=4)
    sites = [
        Site("right", "line-end", "total_price\nx = ", "\n", "total_price"),
        Site("wrong", "line-end", "total_price\nx = ", "\n", "other"),
        Site("span", "span", "x = ", "\n", "total_price"),
    ]
    table = plan_table(denoiser, denoiser.tokenizer, sites)
    assert table["line-end.autoregressive"] == "12.00,0.00,0.00,0.500"
    singles, checks, canvases, hits = map(float, table["line-end.diffusion"].split(","))
    assert (singles, checks, hits) == (0, 0, 0.5)
    assert 1 <= canvases <= 4
    singles, checks, canvases, hits = map(float, table["line-end.prompt-lookup"].split(","))
    assert singles + checks < 12
    assert checks > 0
    assert (canvases, hits) == (0, 0.5)
    singles, checks, canvases, hits = map(float, table["line-end.speculative"].split(","))
    assert canvases == singles + checks
    names = {"diffusion", "diffusion-2", "autoregressive", "speculative", "prompt-lookup"}
    assert set(table) == {f"line-end.{name}" for name in names}
