"""Answers in a chat template, whose first line stands frozen in the first canvas."""

from dataclasses import replace

import pytest
from scripted import MASK_SPEC, UNIFORM_SPEC

from dg_lsp.canvas.spec import DecoderName, PromptFormat
from dg_lsp.errors import RequestError
from dg_lsp.settings import CompletionSettings, SamplerOptions

MASKS, NOISE = (
    replace(
        spec,
        fim=None,
        prompt_format=PromptFormat.INSTRUCT,
        template="gemma4",
        canvas_lengths=(16, 32, 64),
        has_causal_head=False,
    )
    for spec in (MASK_SPEC, UNIFORM_SPEC)
)
BUFFER = "def f(x):\n    |\n\n\nf(1)\n"
HEAD = "    "  # of the line of the cursor


@pytest.fixture
def answering(reciting, monkeypatch):
    """(engine, denoiser) of an answer, as it is from the beginning of the first canvas on."""

    def make(answer, spec=MASKS, settings=None):
        engine, denoiser = reciting(answer, spec, settings, start=None)
        specials = ("<bos>", "<|turn>", "<turn|>", "<|channel>", "<channel|>")
        ids = {spelling: number for number, spelling in enumerate(specials)}
        monkeypatch.setattr(denoiser.tokenizer, "special", ids.get, raising=False)
        return engine, denoiser

    return make


@pytest.mark.parametrize("spec", [MASKS, NOISE], ids=["masks", "uniform noise"])
def test_answer_continues_the_frozen_head_and_ends_with_the_fence(answering, ask, spec):
    engine, denoiser = answering(f"{HEAD}y = 2 * x\n    return y\n```\nThat is all.", spec)
    result = engine.fill(ask(BUFFER))
    assert result.text == "y = 2 * x\n    return y"
    assert result.canvas_length == 64  # four are known, and a block needs thirty-two
    head = denoiser.tokenizer.encode(HEAD).tolist()
    assert all(canvas[: len(head)] == head for canvases in denoiser.passes for canvas in canvases)


@pytest.mark.parametrize(
    ("answer", "fill"),
    [(f"{HEAD}return x", "return x"), (f"{HEAD}```", ""), (f"{HEAD}\n```", "")],
    ids=["ended by the end token", "empty", "empty line"],
)
def test_end_token_or_fence_ends_the_answer(answering, ask, answer, fill):
    engine, _ = answering(answer)
    assert engine.fill(ask(BUFFER)).text == fill


def test_the_fill_of_a_gap_ends_with_its_block(answering, ask):
    engine, _ = answering("        y = 1\n    else:\n" + 20 * "        f(x - 1)\n" + "```")
    result = engine.fill(ask("def f(x):\n    if x:\n        |\n    return x\n", is_gap=True))
    assert (result.text, result.num_blocks) == ("y = 1", 1), "the rest of the answer need not be decoded"


def test_typed_line_is_completed_and_its_prompt_stays_cached(answering, ask):
    engine, _ = answering("    return x + y\n```")
    assert engine.fill(ask("def f(x, y):\n    return |\n")).text == "x + y"
    result = engine.fill(ask("def f(x, y):\n    return x|\n"))
    assert result.prompt_tokens == result.cached_tokens


def test_long_answer_continues_in_canvases_after_the_head(answering, ask, frames_of):
    fill = "\n".join(f"y{i} = x + {i}" for i in range(1, 12)).replace("\n", "\n    ")
    settings = CompletionSettings(deadline_ms=60_000, early_stop_ms=0, max_tokens=200)
    engine, denoiser = answering(f"{HEAD}{fill}\n```", settings=settings)
    frames, result = frames_of(engine, ask(BUFFER))
    assert result.text == fill
    assert frames[-1].block == 2
    prompts = [size for kind, size, _ in denoiser.calls if kind == "prefill"]
    assert prompts == [prompts[0], prompts[0] + 64, prompts[0] + 128]


def test_a_model_without_canvases_spells_the_end_of_the_line_again(answering, ask):
    causal = replace(MASKS, sampling=None, canvas_lengths=(), has_causal_head=True)
    engine, denoiser = answering(f"\n{HEAD}return x\n```", causal)
    prompt_tokens = engine.fill(ask(BUFFER, max_tokens=0)).prompt_tokens
    denoiser._start = prompt_tokens
    result = engine.fill(ask(BUFFER))
    assert (result.text, result.prompt_tokens) == ("return x", prompt_tokens)
    assert result.decoder is not DecoderName.DIFFUSION


def test_canvas_that_the_head_fills_is_refused(answering, ask):
    engine, _ = answering(f"{HEAD}return x\n```")
    with pytest.raises(RequestError, match="no room beside 4 tokens that are known; choose at least 8"):
        engine.fill(ask(BUFFER, sampler=SamplerOptions(canvas_length=4)))
