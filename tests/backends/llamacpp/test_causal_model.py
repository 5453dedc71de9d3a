"""A causal GGUF without metadata of dg-lsp, described by its vocabulary and run by the engine."""

import pytest
import tiny_masked

from dg_lsp.backends.llamacpp import LlamaDenoiser, LlamaModel
from dg_lsp.canvas.fim import takes_snippets
from dg_lsp.canvas.spec import DecoderName, FimOrder, FimTokens, PromptFormat
from dg_lsp.context.document import Snapshot
from dg_lsp.engine.decoder_selection import measure_costs
from dg_lsp.engine.engine import LocalEngine
from dg_lsp.engine.request import FillRequest
from dg_lsp.models.metadata import describe
from dg_lsp.settings import CompletionSettings, ModelSettings

CPU = ModelSettings(threads=1, gpu_layers=0)
FILES = {
    "fim": {"fim_ids": {"sep": 0, "pre": 2, "suf": 3, "mid": 4}},
    "plain": {"tokens": tiny_masked.TOKENS, "add_start": True},
}


@pytest.fixture(params=FILES)
def engine(request, write_model, opened):
    model = LlamaModel.load(write_model(**FILES[request.param]), CPU)
    spec = describe(model.metadata, model.vocab_size, request.param, model.tokenizer.specials())
    denoiser = LlamaDenoiser(model, spec, CPU)
    settings = CompletionSettings(deadline_ms=60_000, early_stop_ms=0, max_tokens=24, check_syntax=False)
    return opened(LocalEngine(denoiser, denoiser.tokenizer, settings, measure_costs(denoiser)))


def fill(engine, text, **options):
    return engine.fill(FillRequest(Snapshot("file:///a.py", 1, text.replace("|", "")), text.index("|"), **options))


def test_special_tokens_are_found(engine):
    spec = engine.spec
    is_fim = spec.name == "fim"
    assert spec.prompt_format is (PromptFormat.FIM if is_fim else PromptFormat.PREFIX)
    assert spec.fim == (FimTokens(2, 3, 4, FimOrder.PREFIX_FIRST) if is_fim else None)
    assert spec.file_separator_id == (0 if is_fim else None)
    assert takes_snippets(spec, "auto") is is_fim
    assert spec.start_ids == (() if is_fim else (4,))
    assert 1 in spec.end_ids
    assert {0, 2, 3} - {*spec.end_ids} <= {*spec.banned_ids}


def test_typed_character_decodes_at_most_16_prompt_tokens_and_idle_time_makes_the_prompt_exact(engine):
    before, after = "def f(self):\n    return self.x\n" * 4, "\n\ndef g(self):\n    return f(self)\n" * 4
    fill(engine, f"{before}|{after}")
    for typed in ("x", "xy", "xyz", "xy", "xy = ", ""):
        result = fill(engine, f"{before}{typed}|{after}")
        assert result.prompt_tokens - result.cached_tokens <= 16
    is_fim = engine.spec.name == "fim"
    assert result.drift == (6 if is_fim else 0)
    assert engine.is_exact is not is_fim
    assert len(list(engine.refresh())) >= (2 if is_fim else 0)
    assert engine.is_exact
    assert fill(engine, f"{before}|{after}").drift == 0


@pytest.mark.parametrize("text", ["a = |\nb = 2\n", "|", "def f():\n    |\n"])
@pytest.mark.parametrize("decoder", [None, DecoderName.AUTOREGRESSIVE, DecoderName.PROMPT_LOOKUP])
def test_fill_is_decoded_token_by_token(engine, text, decoder):
    result = fill(engine, text, decoder=decoder)
    assert result.decoder in ((decoder,) if decoder else (DecoderName.AUTOREGRESSIVE, DecoderName.PROMPT_LOOKUP))
    assert result.canvas_length == 0
    assert 1 <= result.steps <= 25
    again = fill(engine, text, decoder=decoder)
    assert again.prompt_tokens - again.cached_tokens == 1
