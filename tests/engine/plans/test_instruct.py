"""An answer that has begun already: its first line stands frozen in the first canvas."""

from dataclasses import replace

import pytest

from dg_lsp.backends.scripted import MASK_SPEC, UNIFORM_SPEC
from dg_lsp.canvas.chat import TEMPLATES, Special
from dg_lsp.canvas.spec import PromptFormat
from dg_lsp.engine.request import DecoderName
from dg_lsp.errors import ModelUnsupportedError, RequestError
from dg_lsp.settings import FillSettings

LENGTHS = (16, 32, 64)
MASKS, NOISE = (
    replace(spec, fim=None, prompt_format=PromptFormat.INSTRUCT, template="gemma4", canvas_lengths=LENGTHS)
    for spec in (MASK_SPEC, UNIFORM_SPEC)
)
BEFORE, AFTER = "def f(x):\n    ", "\n\n\nf(1)\n"
HEAD = "```python\n    "


@pytest.fixture
def answering(reciting, monkeypatch):
    """(engine, denoiser) of an answer, as it is from the beginning of the first canvas on."""

    def make(answer, spec=MASKS, settings=None):
        engine, denoiser = reciting(answer, spec, settings, start=None)
        pieces = (*TEMPLATES["gemma4"].before, *TEMPLATES["gemma4"].after)
        specials = [piece.spelling for piece in pieces if isinstance(piece, Special)]
        monkeypatch.setattr(denoiser.tokenizer, "special", lambda spelling: specials.index(spelling) % 5, raising=False)
        return engine, denoiser

    return make


@pytest.mark.parametrize("spec", [MASKS, NOISE], ids=["masks", "uniform noise"])
def test_the_answer_goes_on_from_what_is_written_and_ends_with_the_fence(answering, ask, spec):
    engine, denoiser = answering(f"{HEAD}y = 2 * x\n    return y\n```\nThat is all.", spec)
    result = engine.fill(ask(f"{BEFORE}|{AFTER}"))
    assert result.text == "y = 2 * x\n    return y"
    assert result.canvas_length == 64  # fourteen are known, and a block wants thirty-two
    head = denoiser.tokenizer.encode(HEAD).tolist()
    assert all(canvas[: len(head)] == head for canvases in denoiser.raced for canvas in canvases)


def test_the_end_token_ends_it_as_well(answering, ask):
    engine, _ = answering(f"{HEAD}return x")
    assert engine.fill(ask(f"{BEFORE}|{AFTER}")).text == "return x"


@pytest.mark.parametrize("answer", [f"{HEAD}```", f"{HEAD}\n```"], ids=["at once", "on the next line"])
def test_nothing_is_nothing(answering, ask, answer):
    engine, _ = answering(answer)
    assert engine.fill(ask(f"{BEFORE}|{AFTER}")).text == ""


def test_a_line_that_was_written_in_part(answering, ask):
    engine, _ = answering("```python\n    return x + y\n```")
    result = engine.fill(ask("def f(x, y):\n    return |\n"))
    assert result.text == "x + y"


def test_typing_decodes_nothing_of_the_prompt_again(answering, ask):
    engine, _ = answering("```python\n    return x\n```")
    engine.fill(ask("def f(x):\n    retur|\n"))
    result = engine.fill(ask("def f(x):\n    return|\n"))
    assert result.prompt_tokens == result.cached_tokens


def test_a_long_answer_goes_on_in_further_canvases_with_what_was_frozen_in_the_prompt(answering, ask, frames_of):
    fill = "\n".join(f"y{i} = x + {i}" for i in range(1, 9)).replace("\n", "\n    ")
    settings = FillSettings(deadline_ms=60_000, early_stop_ms=0, max_tokens=200)
    engine, denoiser = answering(f"{HEAD}{fill}\n```", settings=settings)
    frames, result = frames_of(engine, ask(f"{BEFORE}|{AFTER}"))
    assert result.text == fill
    assert [frame.block for frame in frames][-1] == 2
    prompts = [size for kind, size, _ in denoiser.calls if kind == "prefill"]
    assert prompts == [prompts[0], prompts[0] + 64, prompts[0] + 128]


def test_two_canvases_begin_with_the_same_answer(answering, ask):
    engine, denoiser = answering(f"{HEAD}return x\n```")
    assert engine.fill(ask(f"{BEFORE}|{AFTER}", plan=DecoderName.RACE)).text == "return x"
    assert {len(canvases) for canvases in denoiser.raced} == {2}


def test_token_by_token_the_beginning_is_prompt(answering, ask):
    engine, denoiser = answering(f"{HEAD}return x\n```")
    denoiser._start = len(engine._layout(ask(f"{BEFORE}|{AFTER}"), DecoderName.CANVAS).prompt_ids)
    assert engine.fill(ask(f"{BEFORE}|{AFTER}", plan=DecoderName.CAUSAL)).text == "return x"
    assert denoiser.raced == []


def test_a_canvas_that_the_beginning_fills_is_refused(answering, ask):
    engine, _ = answering(f"{HEAD}return x\n```", settings=FillSettings(canvas_length=14))
    with pytest.raises(RequestError, match="no room beside 14 tokens that are known; choose at least 18"):
        engine.fill(ask(f"{BEFORE}|{AFTER}"))


def test_a_vocabulary_without_the_templates_tokens_is_refused(reciting, ask):
    engine, _ = reciting("x", MASKS)
    with pytest.raises(ModelUnsupportedError, match="<bos>"):
        engine.fill(ask("a = |\n"))
