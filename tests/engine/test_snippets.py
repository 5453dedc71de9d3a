"""Code of other files in the prompt."""

from dataclasses import replace

import pytest

from dg_lsp.backends.scripted import ScriptedDenoiser
from dg_lsp.canvas.spec import DecoderName
from dg_lsp.context.document import Snapshot
from dg_lsp.context.snippets import Snippet, Snippets, SnippetSource
from dg_lsp.engine.engine import LocalEngine, drain
from dg_lsp.engine.request import FillRequest, RewriteRequest
from dg_lsp.settings import CompletionSettings

EXTRA = Snippets((Snippet(SnippetSource.IMPORTS, "pkg/tools.py", "def clean(text): ..."),))
BUFFER = "from .tools import clean\n\n\ndef run(text):\n    return \n"
OFFSET = len(BUFFER) - 1


@pytest.fixture
def seen():
    return []


@pytest.fixture
def engine(seen):
    def fill(prefix, _suffix):
        seen.append(prefix)
        return "clean(text)" if "def clean(text): ..." in prefix else "text"

    denoiser = ScriptedDenoiser(fill)
    return LocalEngine(denoiser, denoiser.tokenizer, CompletionSettings(early_stop_ms=0, deadline_ms=1e6))


def request(text=BUFFER, offset=OFFSET, snippets=EXTRA, **more):
    return FillRequest(Snapshot("file:///pkg/main.py", 0, text), offset, snippets=snippets, **more)


@pytest.mark.parametrize("decoder", [name for name in DecoderName if name is not DecoderName.INFILL])
def test_every_decoder_sees_snippets(engine, decoder):
    assert engine.fill(request(decoder=decoder)).text == "clean(text)"
    assert engine.fill(replace(request(decoder=decoder), snippets=Snippets())).text == "text"


def test_typed_character_decodes_no_snippet_again(engine):
    engine.fill(request())
    for size in range(1, 6):
        text = BUFFER[:OFFSET] + "clean"[:size] + BUFFER[OFFSET:]
        result = engine.fill(request(text, OFFSET + size))
        assert result.prompt_tokens - result.cached_tokens <= 16


def test_rewrite_sees_snippets(engine, seen):
    start = BUFFER.index("return")
    snapshot = Snapshot("file:///pkg/main.py", 0, BUFFER.replace("return ", "return text"))
    drain(engine.rewrite(RewriteRequest(snapshot, start, start + 11, deadline_ms=1e6, snippets=EXTRA)))
    assert "def clean(text): ..." in seen[-1]
