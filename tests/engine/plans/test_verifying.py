"""Guesses save passes and change nothing: whatever is guessed, the text is what `causal` says."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dg_lsp.backends.scripted import END_ID, MASK_SPEC, NUM_SPECIALS, ScriptedDenoiser
from dg_lsp.canvas.layout import Layout
from dg_lsp.engine.decoders.autoregressive import AutoregressiveDecoder, continuation
from dg_lsp.engine.decoders.base import DecodeTask
from dg_lsp.engine.engine import drain
from dg_lsp.engine.request import DecoderName
from dg_lsp.engine.stop_criteria import Limits, StopCriteria
from dg_lsp.settings import PLANS

PROMPT = "x = 1\n"


class GuessingFilling(AutoregressiveDecoder):
    """Guesses what it was told to."""

    def __init__(self, task, guesses):
        super().__init__(task)
        self.guesses = iter(guesses)

    def _guess(self, *_):
        yield from ()
        return np.array(next(self.guesses, []), np.int32), 0


def filled(make, script, limits, room=64):
    """(draft, passes) after a prompt; the slot is checked to hold no guess that was wrong."""
    spec = replace(MASK_SPEC, max_prompt_tokens=len(PROMPT) + 2, canvas_lengths=(room,))
    denoiser = ScriptedDenoiser(script, spec=spec)
    filling = make(DecodeTask(denoiser, limits, StopCriteria(denoiser.tokenizer, limits), np.random.default_rng(0)))
    prompt = np.concatenate([[2], denoiser.tokenizer.encode(PROMPT), [4]]).astype(np.int32)
    filling.prefill(0, prompt, 0)
    (draft,) = drain(filling.run(0, Layout(prompt)))
    passes = denoiser.num_steps
    known = np.concatenate([prompt, draft.ids])
    assert denoiser.prefill(0, known) <= 1
    return draft, passes


@settings(max_examples=60, deadline=None)
@given(
    script=st.text(alphabet="ab \n", max_size=24),
    guesses=st.lists(st.lists(st.sampled_from([*(np.frombuffer(b"ab \n", np.uint8) + NUM_SPECIALS), END_ID]))),
    max_lines=st.sampled_from([1, 2, None]),
    room=st.sampled_from([5, 64]),
)
def test_any_guess_gives_the_same_draft_in_no_more_passes(script, guesses, max_lines, room):
    limits = Limits(0, 16, max_lines)
    causal, num_causal = filled(AutoregressiveDecoder, script, limits, room)
    guessed, num_guessed = filled(lambda task: GuessingFilling(task, guesses), script, limits, room)
    assert guessed.ids.tolist() == causal.ids.tolist()
    assert guessed.is_ended == causal.is_ended
    assert len(guessed.confidence) == len(causal.confidence)
    assert num_guessed == guessed.steps <= num_causal


def test_a_right_guess_is_taken_in_one_pass():
    right = (np.frombuffer(b"return", np.uint8) + NUM_SPECIALS).tolist()
    draft, passes = filled(lambda task: GuessingFilling(task, [[*right, END_ID]]), "return", Limits(0, 16, 1))
    assert draft.ids.tolist() == right
    assert draft.is_ended
    assert passes == 1


def test_a_canvas_drafts_a_line_and_one_pass_checks_it(engine_of, ask, frames_of):
    engine, denoiser = engine_of("x + y", tokens_per_step=16)
    frames, result = frames_of(engine, ask("a = |\n", plan=DecoderName.DRAFT_VERIFY))
    assert result.text == "x + y"
    assert denoiser.num_steps == 2
    assert [frame.settled_text for frame in frames] == ["", "x + y"]
    assert "".join(cell.text for cell in frames[0].cells) == "x + y"
    assert not any(cell.is_committed for cell in frames[0].cells)


def test_an_unlikely_draft_is_not_checked(engine_of, ask):
    engine, denoiser = engine_of("x + y", tokens_per_step=2)  # the rest of the canvas has confidence under a half
    assert engine.fill(ask("a = |\n", plan=DecoderName.DRAFT_VERIFY)).text == "x + y"
    assert denoiser.num_steps == 4


def test_what_stands_in_the_buffer_is_looked_up(engine_of, ask):
    text = "first_value = compute(1)\nsecond = first_|\nthird = 3\n"
    engine, denoiser = engine_of("value = compute")
    assert engine.fill(ask(text, plan=DecoderName.LOOKUP)).text == "value = compute"
    with_lookup = denoiser.num_steps
    engine, denoiser = engine_of("value = compute")
    engine.fill(ask(text, plan=DecoderName.CAUSAL))
    assert with_lookup <= 4
    assert denoiser.num_steps == len("value = compute") + 1


def test_what_stands_below_is_looked_up_too(engine_of, ask):
    engine, denoiser = engine_of("total_price")
    assert engine.fill(ask("return self.|\n\nself.total_price = 0\n", plan=DecoderName.LOOKUP)).text == "total_price"
    assert denoiser.num_steps <= 3


@pytest.mark.parametrize(
    ("ids", "following"),
    [
        pytest.param([], [], id="nothing"),
        pytest.param([1, 2], [], id="no room for a copy"),
        pytest.param([1, 2, 3, 4, 1, 2], [3], id="one token after two"),
        pytest.param([0, 1, 2, 3, 4, 5, 0, 1, 2], [3, 4], id="two tokens after three"),
        pytest.param([9, 2, 3, 1, 2], [], id="only the last token came before"),
        pytest.param([1, 2, 3, 1, 2, 4, 1, 2], [4], id="of two copies the later"),
        pytest.param([7, 1, 2, 3, 8, 1, 2, 4, 7, 1, 2], [3, 8], id="of two copies the longer"),
        pytest.param([0, 1, 2, 3, -1, 0, 1, 2], [3], id="not beyond a border"),
        pytest.param([5, 5, 5, 5], [5], id="a copy that overlaps"),
        pytest.param([*range(30), *range(12)], [12, 13, 14, 15], id="four tokens at most"),
    ],
)
def test_continuations(ids, following):
    assert continuation(np.array(ids, np.int32)).tolist() == following


def test_settings_name_the_plans_that_there_are():
    assert list(PLANS) == [name.value for name in DecoderName]
