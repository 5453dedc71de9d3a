"""Answers in a chat template, whose first line stands frozen in the first canvas."""

from dataclasses import replace

import pytest
from chatty import chatty
from scripted import MASK_SPEC, UNIFORM_SPEC, engine_for

from dg_lsp.canvas.spec import DecoderName
from dg_lsp.errors import RequestError
from dg_lsp.settings import SamplerOptions

MASKS, NOISE = (replace(spec, canvas_lengths=(16, 32, 64), has_causal_head=False) for spec in (MASK_SPEC, UNIFORM_SPEC))
ABOVE = "def f(x):\n"
BUFFER = f"{ABOVE}    |\n\n\nf(1)\n"


def answering(answer, spec=MASKS, **settings):
    """An engine whose model answers with a block of code, as it is from the code above the cursor's line on."""
    recited = chatty(f"```python\n{answer}", spec, tokens_per_step=16)
    return engine_for(recited, **{"deadline_ms": 60_000, "early_stop_ms": 0, **settings})


@pytest.mark.parametrize("spec", [MASKS, NOISE], ids=["masks", "uniform noise"])
def test_answer_continues_the_frozen_head_and_ends_with_the_fence(ask, spec):
    result = answering(f"{ABOVE}    y = 2 * x\n    return y\n```\nThat is all.", spec).fill(ask(BUFFER))
    assert result.text == "y = 2 * x\n    return y"
    assert result.canvas_length == 64  # four are known, and a block needs thirty-two


@pytest.mark.parametrize(
    ("answer", "fill"),
    [("return x", "return x"), ("```", ""), ("\n```", "")],
    ids=["ended by the end token", "empty", "empty line"],
)
def test_end_token_or_fence_ends_the_answer(ask, answer, fill):
    assert answering(f"{ABOVE}    {answer}").fill(ask(BUFFER)).text == fill


def test_the_fill_of_a_gap_ends_with_its_block(ask):
    engine = answering(f"{ABOVE}    if x:\n        y = 1\n    else:\n" + 20 * "        f(x - 1)\n" + "```")
    result = engine.fill(ask("def f(x):\n    if x:\n        |\n    return x\n", is_gap=True))
    assert (result.text, result.num_blocks) == ("y = 1", 1), "the rest of the answer need not be decoded"


def test_typed_line_is_completed_and_its_prompt_stays_cached(ask):
    engine = answering("def f(x, y):\n    return x + y\n```")
    assert engine.fill(ask("def f(x, y):\n    return |\n")).text == "x + y"
    result = engine.fill(ask("def f(x, y):\n    return x|\n"))
    assert result.prompt_tokens == result.cached_tokens


def test_long_answer_continues_in_canvases_after_the_head(ask):
    fill = "\n".join(f"y{i} = x + {i}" for i in range(1, 12)).replace("\n", "\n    ")
    result = answering(f"{ABOVE}    {fill}\n```", max_tokens=200).fill(ask(BUFFER))
    assert (result.text, result.num_blocks) == (fill, 3)


def test_a_model_without_canvases_spells_the_end_of_the_line_again(ask):
    causal = replace(MASK_SPEC, sampling=None, canvas_lengths=())
    result = answering(f"{ABOVE}    return x\n```", causal).fill(ask(BUFFER))
    assert (result.text, result.decoder) == ("return x", DecoderName.AUTOREGRESSIVE)


def test_canvas_that_the_head_fills_is_refused(ask):
    engine = answering(f"{ABOVE}    return x\n```")
    with pytest.raises(RequestError, match="no room beside 4 tokens that are known; choose at least 8"):
        engine.fill(ask(BUFFER, sampler=SamplerOptions(canvas_length=4)))
