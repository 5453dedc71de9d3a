"""A GGUF that knows nothing of dg-lsp, as llama.cpp describes it and as the engine runs it."""

import pytest

from dg_lsp.backends.llamacpp import LlamaDenoiser, LlamaModel
from dg_lsp.canvas.fim import takes_extra
from dg_lsp.canvas.spec import DecoderName, FimOrder, FimTokens, PromptFormat
from dg_lsp.context.document import Snapshot
from dg_lsp.context.snippets import Snippet, Snippets, SnippetSource
from dg_lsp.engine.decoder_selection import measure_costs
from dg_lsp.engine.engine import Engine
from dg_lsp.engine.request import FillRequest
from dg_lsp.errors import RequestError
from dg_lsp.models.metadata import describe
from dg_lsp.settings import FillSettings, RuntimeSettings

CPU = RuntimeSettings(threads=1, gpu_layers=0)


@pytest.fixture(params=["fim", "plain"])
def engine(request, write_model):
    model = LlamaModel.load(write_model(f"{request.param}.gguf", stock=request.param), CPU)
    spec = describe(model.metadata, model.vocab_size, request.param, model.tokenizer.specials())
    denoiser = LlamaDenoiser(model, spec, CPU)
    settings = FillSettings(deadline_ms=60_000, early_stop_ms=0, max_tokens=24, check_syntax=False)
    opened = Engine(denoiser, denoiser.tokenizer, settings, measure_costs(denoiser))
    yield opened
    opened.close()


def test_its_special_tokens_are_known(engine):
    spec = engine.spec
    is_fim = spec.name == "fim"
    assert spec.prompt_format is (PromptFormat.FIM if is_fim else PromptFormat.PREFIX)
    assert spec.fim == (FimTokens(2, 3, 4, FimOrder.PREFIX_FIRST) if is_fim else None)
    assert spec.file_separator_id == (0 if is_fim else None)
    assert takes_extra(spec, "auto") is is_fim
    assert spec.start_ids == (() if is_fim else (1,))
    assert 1 in spec.end_ids
    assert {0, 2, 3, 4} - {*spec.end_ids} <= {*spec.banned_ids}


@pytest.mark.parametrize("text", ["a = |\nb = 2\n", "|", "def f():\n    |\n"])
@pytest.mark.parametrize("decoder", [None, DecoderName.AUTOREGRESSIVE, DecoderName.PROMPT_LOOKUP])
def test_it_is_decoded_token_by_token(engine, text, decoder):
    request = FillRequest(Snapshot("file:///a.py", 1, text.replace("|", "")), text.index("|"), decoder=decoder)
    result = engine.fill(request)
    assert result.decoder in ((decoder,) if decoder else (DecoderName.AUTOREGRESSIVE, DecoderName.PROMPT_LOOKUP))
    assert result.canvas_length == 0
    assert 1 <= result.steps <= 25
    again = engine.fill(request)
    assert again.text == result.text
    assert again.prompt_tokens - again.cached_tokens == 1


@pytest.mark.parametrize("decoder", [DecoderName.AUTOREGRESSIVE, DecoderName.PROMPT_LOOKUP])
def test_code_from_elsewhere_stands_first_and_stays_in_the_cache(engine, decoder):
    extra = Snippets((Snippet(SnippetSource.GIVEN, "b.py", "def total(items): ...\n"),))
    buffers = ["a = 1\nx = to", "a = 1\nx = tot"]
    _, typed = (
        engine.fill(FillRequest(Snapshot("file:///a.py", 1, text), len(text), decoder=decoder, extra=extra))
        for text in buffers
    )
    alone = engine.fill(FillRequest(Snapshot("file:///a.py", 1, buffers[1]), len(buffers[1]), decoder=decoder))
    assert typed.prompt_tokens > alone.prompt_tokens + 8
    if engine.spec.fim is not None:  # its suffix comes after the prefix
        assert typed.prompt_tokens - typed.cached_tokens <= 8


@pytest.mark.parametrize("decoder", [decoder for decoder in DecoderName if decoder.needs_canvas])
def test_it_has_no_canvas(engine, decoder):
    with pytest.raises(RequestError, match="has no canvas"):
        engine.fill(FillRequest(Snapshot("file:///a.py", 1, "a = "), 4, decoder=decoder))
