"""Behaviour that all decoders share, over a scripted model."""

from dataclasses import replace

import pytest
from scripted import MASK_SPEC

from dg_lsp.canvas.spec import DecoderName, PromptFormat
from dg_lsp.context.document import Snapshot
from dg_lsp.context.window import Snippet, Snippets, SnippetSource
from dg_lsp.engine.decoders import base
from dg_lsp.engine.decoders.base import Limits
from dg_lsp.engine.engine import drain
from dg_lsp.engine.request import RewriteRequest
from dg_lsp.errors import RequestError
from dg_lsp.postprocess.validate import Reason
from dg_lsp.settings import SamplerOptions

OPEN = [DecoderName.DIFFUSION, DecoderName.AUTOREGRESSIVE, DecoderName.PROMPT_LOOKUP]
"""Those of most models; a scripted model has no text for a canvas whose first positions are frozen."""
SNIPPETS = Snippets((Snippet(SnippetSource.OPEN_FILES, "pkg/tools.py", "def clean(text): ..."),))
NUMBERS = "9" + "".join(f"{number:03}" for number in range(160))
every_decoder = pytest.mark.parametrize("decoder", OPEN)


@every_decoder
def test_line_is_filled_and_the_result_names_the_decoder(engine_of, ask, decoder):
    engine, _ = engine_of("x + y", {"decoder": decoder.value})
    assert engine.fill(ask("a = |\n", decoder=DecoderName.DIFFUSION)).decoder is DecoderName.DIFFUSION
    result = engine.fill(ask("def add(x, y):\n    return |\n"))
    assert (result.text, result.decoder, len(result.candidates)) == ("x + y", decoder, 1)
    assert result.canvas_length == (8 if decoder.needs_canvas else 0)
    assert result.output_tokens == len("x + y") + 1


@every_decoder
@pytest.mark.parametrize(
    ("script", "text", "changes", "fill"),
    [
        pytest.param("x\nmore", "a = |\n", {}, "x", id="ends with the line of the cursor"),
        pytest.param(NUMBERS, "a = |\n", {"max_tokens": 32}, NUMBERS[:32], id="max_tokens"),
        pytest.param(NUMBERS, "a = |\n", {"max_tokens": 9}, NUMBERS[:9], id="part of a canvas"),
        pytest.param("x = 1\n    " + 30 * "y", "def f():\n    |\n", {"max_tokens": 16}, "x = 1", id="broken line"),
        pytest.param("\n    x = 1\n    y", "if f():\n    |\n", {"early_stop_ms": 1e-6}, "x = 1", id="text before stop"),
    ],
)
def test_fill_ends_within_the_limits_of_the_settings(engine_of, ask, decoder, script, text, changes, fill):
    engine, denoiser = engine_of(script, changes, tokens_per_step=8)
    assert engine.fill(ask(text, decoder=decoder)).text.strip() == fill
    assert denoiser.num_steps <= len(script)


@pytest.mark.parametrize("num_slots", [1, 4], ids=["one slot", "four slots"])
@pytest.mark.parametrize(("decoder", "num_candidates"), [*((name, 1) for name in OPEN), (DecoderName.DIFFUSION, 2)])
def test_requests_between_the_passes_do_not_change_a_fill(engine_of, ask, decoder, num_candidates, num_slots):
    texts = ("alpha + beta", "beta")
    engine, _ = engine_of(
        lambda prefix, _: texts if prefix == "a = " else "gamma", tokens_per_step=2, num_slots=num_slots
    )
    wanted = ask("a = |\n", decoder=decoder, num_candidates=num_candidates)
    other = ask("b = |\n", decoder=DecoderName.AUTOREGRESSIVE)
    alone = engine.fill(wanted)
    interrupted = drain(engine.complete(wanted, deadline=float("inf")), lambda _: engine.fill(other))
    assert (interrupted.candidates, interrupted.steps) == (alone.candidates, alone.steps)
    assert [candidate.text for candidate in alone.candidates] == [*texts[:num_candidates]]
    assert alone.steps > 1


@every_decoder
def test_repetitive_fill_is_stopped_and_rejected(engine_of, ask, decoder):
    engine, denoiser = engine_of("width, " * 9)
    result = engine.fill(ask("a = f(|\n", decoder=decoder))
    assert [rejection.reason for rejection in result.rejections][:1] == [Reason.REPEATS_ITSELF]
    assert denoiser.num_steps <= len("width, " * 5)


def test_the_lines_of_a_long_answer_are_searched_for_loops_once(monkeypatch):
    searched = []
    monkeypatch.setattr(base, "is_repetitive", lambda text: searched.append(text) and False)
    lines = [f"        value_{number} = {number} * width" for number in range(200)]
    for number in range(len(lines)):
        assert base.text_ending("\n".join(lines[: number + 1]), Limits(0, 0, None), is_early=False) is None
    assert len("\n".join(searched)) <= len("\n".join(lines))


@every_decoder
def test_fill_stops_where_the_context_is_full(engine_of, ask, decoder):
    spec = replace(MASK_SPEC, max_prompt_tokens=40, canvas_lengths=(16,))
    engine, _ = engine_of(NUMBERS, {"max_tokens": 400}, spec=spec, context_length=200)
    shown = engine.fill(ask("a = |\n", decoder=decoder)).text
    assert NUMBERS.startswith(shown)
    assert 30 <= len(shown) <= 80


@every_decoder
def test_whole_lines_are_enough_after_early_stop_ms(engine_of, ask, decoder):
    engine, denoiser = engine_of("x = 1\n    y = 2\n    return x")
    request = ask("def f():\n    |\n", decoder=decoder, early_stop_ms=1e-6)
    assert engine.fill(request).text == "x = 1"
    num_early = denoiser.num_steps
    assert engine.fill(replace(request, early_stop_ms=0)).text == "x = 1\n    y = 2\n    return x"
    assert denoiser.num_steps - num_early > num_early
    assert engine.fill(request, deadline=float("inf")).text == "x = 1\n    y = 2\n    return x"


@every_decoder
def test_typed_character_decodes_only_what_is_new(engine_of, ask, decoder):
    engine, _ = engine_of("x")
    engine.fill(ask("def f(x):\n    retur|\n\nprint(f(1))\n", decoder=decoder))
    request = ask("def f(x):\n    return|\n\nprint(f(1))\n", decoder=decoder)
    result = engine.fill(request)
    assert result.prompt_tokens - result.cached_tokens == 2  # the letter and the middle sentinel
    again = engine.fill(request)
    assert again.prompt_tokens - again.cached_tokens <= 1  # a causal pass decodes at least one token


@every_decoder
def test_snippets_are_in_the_prompt_and_stay_cached_while_the_user_types(engine_of, ask, decoder):
    engine, _ = engine_of(lambda prefix, _: "clean(text)" if "def clean(text): ..." in prefix else "text")
    request = ask("def run(text):\n    return |\n", decoder=decoder)
    assert engine.fill(request).text == "text"
    assert engine.fill(replace(request, snippets=SNIPPETS)).text == "clean(text)"
    result = engine.fill(ask("def run(text):\n    return c|\n", decoder=decoder, snippets=SNIPPETS))
    assert result.prompt_tokens - result.cached_tokens <= 16


CANVAS_ONLY = {"has_causal_head": False}
INFILL = {**CANVAS_ONLY, "fim": None, "prompt_format": PromptFormat.INFILL}
CAUSAL_ONLY = {"sampling": None, "canvas_lengths": ()}
DRAFTS = {"is_drafter": True}


@pytest.mark.parametrize(
    ("decoder", "parts", "problem"),
    [
        (DecoderName.AUTOREGRESSIVE, CANVAS_ONLY, "cannot run the decoder autoregressive: choose diffusion or infill"),
        (DecoderName.PROMPT_LOOKUP, INFILL, "prompt-lookup: choose diffusion or infill"),
        (DecoderName.DIFFUSION, CAUSAL_ONLY, "diffusion: choose autoregressive or prompt-lookup"),
        (DecoderName.DIFFUSION, DRAFTS, "diffusion: choose autoregressive or speculative or prompt-lookup"),
        (DecoderName.INFILL, DRAFTS, "has no canvas between frozen text, which infill needs; choose another decoder"),
        (DecoderName.SPECULATIVE, {}, "speculative: choose diffusion or autoregressive or prompt-lookup or infill"),
    ],
)
def test_decoder_that_the_model_lacks_is_refused(engine_of, ask, decoder, parts, problem):
    engine, denoiser = engine_of("x", spec=replace(MASK_SPEC, **parts))
    with pytest.raises(RequestError, match=problem):
        engine.fill(ask("a = |\n", decoder=decoder))
    assert denoiser.num_steps == denoiser.num_prefilled == 0


def test_model_with_blocks_fills_block_by_block_and_has_no_other_canvases(engine_of, ask):
    sampling = replace(MASK_SPEC.sampling, block_length=8)
    spec = replace(MASK_SPEC, sampling=sampling, canvas_lengths=(8,), has_causal_head=False)
    engine, _ = engine_of("first + second + third", spec=spec)
    result = engine.fill(ask("a = |\n", num_candidates=3))
    assert (result.text, result.canvas_length, len(result.candidates)) == ("first + second + third", 8, 1)
    assert engine.fill(ask("a = |\n", sampler=SamplerOptions(canvas_length=8))).text == result.text
    with pytest.raises(RequestError, match="fills blocks of 8 tokens"):
        engine.fill(ask("a = |\n", sampler=SamplerOptions(canvas_length=4)))
    selected = RewriteRequest(Snapshot("file:///a.py", "a = 1\n"), 0, 5, strength=0.5)
    with pytest.raises(RequestError, match="no canvas to renoise"):
        drain(engine.rewrite(selected, deadline=float("inf")))
