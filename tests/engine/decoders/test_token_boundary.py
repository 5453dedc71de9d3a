"""Prompts that end at a token boundary: every decoder's fill begins with the text between it and the cursor."""

import math
from dataclasses import replace

import pytest
from scripted import MASK_SPEC

from dg_lsp.canvas.spec import DecoderName, PromptCut
from dg_lsp.engine.engine import drain
from dg_lsp.engine.request import Priority, RewriteRequest
from dg_lsp.postprocess.validate import Reason

DECODERS = [DecoderName.DIFFUSION, DecoderName.AUTOREGRESSIVE, DecoderName.PROMPT_LOOKUP]
every_decoder = pytest.mark.parametrize("decoder", DECODERS)
SPEC = replace(MASK_SPEC, fim=replace(MASK_SPEC.fim, cut=PromptCut.TOKEN))


@every_decoder
@pytest.mark.parametrize(
    ("text", "script", "fill"),
    [
        pytest.param("def f(x):\n    ret|\n", " return x", "urn x", id="word"),
        pytest.param("def f(item_name):\n    return item_na|\n", "name", "me", id="identifier"),
        pytest.param("def f(x):\n    |\n", "\n    return x", "return x", id="indentation"),
        pytest.param("def f(x):\n|    return y\n", "\n    x = 2", "    x = 2", id="line end"),
        pytest.param("a = |\n", " 1", "1", id="space"),
        pytest.param("a = '\N{SNAKE}|\n", " '\N{SNAKE}'", "'", id="emoji"),
        pytest.param("def f(x):\r\n    |\r\n", "\n    return x", "return x", id="CRLF"),
    ],
)
def test_text_before_the_cursor_is_spelled_and_never_shown(engine_of, ask, frames_of, decoder, text, script, fill):
    engine, denoiser = engine_of(script, spec=SPEC)
    frames, result = frames_of(engine, ask(text, decoder=decoder))
    assert result.text == fill
    assert denoiser.num_steps == len(frames) == result.steps
    assert all(fill.startswith(frame.settled_text) for frame in frames)
    assert frames[-1].settled_text == fill
    assert all(fill.startswith(frame.earlier_text + "".join(cell.text for cell in frame.cells)) for frame in frames)


@every_decoder
def test_script_that_goes_another_way_is_forced_to_the_cursor(engine_of, ask, decoder):
    engine, _ = engine_of("other", spec=SPEC)
    request = ask("def f(x):\n    ret|\n", decoder=decoder)
    draft = list(engine.complete(request, deadline=math.inf))[-1].draft
    assert engine._model.tokenizer.decode(draft.ids) == b" ret"
    assert draft.confidence[:4].tolist() == [1, 1, 1, 1]  # among the tokens that can follow: one byte each
    result = engine.fill(request)
    assert [rejection.reason for rejection in result.rejections] == [Reason.EMPTY]


@every_decoder
def test_several_candidates_begin_at_the_cursor(engine_of, ask, decoder):
    engine, _ = engine_of(" return x", spec=SPEC)
    request = ask("def f(x):\n    ret|\n", decoder=decoder, num_candidates=3, priority=Priority.INVOKED)
    assert engine.fill(request).text == "urn x"


@every_decoder
def test_tokens_before_the_cursor_are_not_counted_as_tokens_of_the_fill(engine_of, ask, decoder):
    engine, _ = engine_of("\n    return x", spec=SPEC, tokens_per_step=1)
    assert engine.fill(ask("def f(x):\n    |\n", decoder=decoder, max_tokens=6)).text == "return"


@every_decoder
def test_typed_character_of_a_word_decodes_at_most_one_prompt_token(engine_of, ask, decoder):
    engine, _ = engine_of(" return x", spec=SPEC)
    for typed in ("r", "re", "ret", "retu"):
        result = engine.fill(ask(f"def f(x):\n    {typed}|\n\nprint(f(1))\n", decoder=decoder))
        assert result.text == "return x"[len(typed) :]
    assert result.prompt_tokens - result.cached_tokens <= 1


def test_rewrite_of_a_selection_begins_at_the_cursor(engine_of, ask):
    seen = set()
    engine, _ = engine_of(lambda prefix, _: seen.add(prefix) or "total = 1", spec=SPEC)
    drain(RewriteRequest(ask("x = 1\ntotal = 2\n|").snapshot, 6, 15, strength=0.5).run(engine, math.inf))
    assert "x = 1\n" in seen
