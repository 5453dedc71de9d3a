"""Decoders that verify drafts: the text never depends on what was drafted."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import END_ID, MASK_SPEC, NUM_SPECIALS, ScriptedDenoiser, engine_for

from dg_lsp.canvas.layout import Layout
from dg_lsp.canvas.spec import DecoderName
from dg_lsp.engine.decode_task import DecodeTask, EngineModel
from dg_lsp.engine.decoders.autoregressive import AutoregressiveDecoder
from dg_lsp.engine.decoders.base import Limits, RequestCosts
from dg_lsp.engine.engine import drain
from dg_lsp.engine.request import Priority

PROMPT = "x = 1\n"


class FixedDrafts(AutoregressiveDecoder):
    def __init__(self, task, drafts):
        super().__init__(task)
        self.drafts = iter(drafts)

    def _drafted(self, *_):
        yield from ()
        return np.array(next(self.drafts, []), np.int32)


def filled(make, script, limits, room=64):
    """(draft, passes) after a prompt; checks that the slot holds no rejected token."""
    spec = replace(MASK_SPEC, max_prompt_tokens=len(PROMPT) + 2, canvas_lengths=(room,))
    denoiser = ScriptedDenoiser(script, spec=spec)
    prompt = np.concatenate([[2], denoiser.tokenizer.encode(PROMPT), [4]]).astype(np.int32)
    model = EngineModel.of(denoiser, denoiser.tokenizer)
    task = DecodeTask(model, DecoderName.AUTOREGRESSIVE, Layout(prompt), limits, RequestCosts())
    (draft,) = drain(make(task).run())
    assert task.costs.num_passes == denoiser.num_steps
    assert denoiser.prefill(0, np.concatenate([prompt, draft.ids])) <= 1
    return draft, task.costs.num_passes


@settings(max_examples=25)
@given(
    script=st.text(alphabet="ab \n", max_size=24),
    drafts=st.lists(st.lists(st.sampled_from([*(np.frombuffer(b"ab \n", np.uint8) + NUM_SPECIALS), END_ID]))),
    max_lines=st.sampled_from([1, 2, None]),
    room=st.sampled_from([5, 64]),
)
def test_any_draft_gives_the_same_text_in_no_more_passes(script, drafts, max_lines, room):
    limits = Limits(0, 16, max_lines)
    plain, num_plain = filled(AutoregressiveDecoder, script, limits, room)
    verified, num_verified = filled(lambda task: FixedDrafts(task, drafts), script, limits, room)
    assert verified.ids.tolist() == plain.ids.tolist()
    assert verified.is_ended == plain.is_ended
    assert len(verified.confidence) == len(plain.confidence)
    assert num_verified <= num_plain


UNSURE = {b"x"[0] + NUM_SPECIALS: 0.7, b"+"[0] + NUM_SPECIALS: 0.6}


class Unsure(ScriptedDenoiser):
    """Knows some texts, the most probable one first."""

    allowed = None

    def __init__(self, *texts):
        super().__init__("")
        self._known = [text.encode() for text in texts]

    def _targets(self, prompt):
        middle = self._parts(prompt)[2]
        rests = [text[len(middle) :] for text in self._known if text.startswith(middle)]
        if self.allowed is not None:
            rests = [rest for rest in rests if rest and rest[0] + NUM_SPECIALS in self.allowed]
        return (rests[0] if rests else b"",)

    def extend(self, slot, ids, allowed=None):
        self.allowed = (allowed or {}).get(len(ids) - 1)
        prediction = super().extend(slot, ids, allowed)
        self.allowed = None
        confidence = [UNSURE.get(token, 0.99) for token in prediction.argmax_ids.tolist()]
        return replace(prediction, confidence=np.array(confidence, np.float32))


@pytest.mark.parametrize("decoder", [DecoderName.AUTOREGRESSIVE, DecoderName.PROMPT_LOOKUP])
def test_alternatives_differ_from_the_first_text_where_they_are_most_probable(ask, decoder):
    engine = engine_for(Unsure("x + y", "x - y", "z"), early_stop_ms=0, deadline_ms=60_000)
    found = {}
    for number in (1, 2, 3):
        request = ask("a = |\n", decoder=decoder, num_candidates=number)
        found[number] = [(fill.text, round(fill.confidence, 1)) for fill in engine.fill(request).candidates]
    assert found[1] == [("x + y", 0.4)]
    assert found[2] == [("x + y", 0.4), ("z", 0.3)]
    assert found[3] == [("x + y", 0.4), ("x - y", 0.3), ("z", 0.3)]


@pytest.mark.parametrize(
    ("first", "priority", "best", "hurried"),
    [
        pytest.param("x + )", Priority.TYPED, ["z"], [], id="the first one has an error"),
        pytest.param("x++++y", Priority.TYPED, ["x++++y"], ["x++++y"], id="the first one is shown to a typing user"),
        pytest.param("x++++y", Priority.INVOKED, ["z"], ["x++++y"], id="the user requested the best one"),
    ],
)
def test_a_more_probable_text_is_found_than_the_one_of_the_best_tokens(ask, first, priority, best, hurried):
    """The best token is the first one of two texts, none of which is as probable as the third one."""
    engine = engine_for(Unsure(first, "x - y", "z"), early_stop_ms=0, deadline_ms=60_000)
    request = ask("a = |\n", decoder=DecoderName.AUTOREGRESSIVE, priority=priority)
    assert [fill.text for fill in engine.fill(request).candidates] == best
    assert [fill.text for fill in engine.fill(replace(request, early_stop_ms=1)).candidates] == hurried


def test_a_further_text_ends_where_it_is_less_probable_than_the_best_one(ask):
    improbable = "z++++++++++++"
    denoiser = Unsure("x++y", improbable)
    engine = engine_for(denoiser, early_stop_ms=0, deadline_ms=60_000)
    request = ask("a = |\n", decoder=DecoderName.AUTOREGRESSIVE, priority=Priority.INVOKED)
    assert [fill.text for fill in engine.fill(request).candidates] == ["x++y"]
    assert denoiser.num_steps < len(improbable)


def test_speculative_verifies_a_canvas_in_one_pass(engine_of, ask, frames_of):
    engine, denoiser = engine_of("x + y", tokens_per_step=16, spec=replace(MASK_SPEC, is_drafter=True))
    frames, result = frames_of(engine, ask("a = |\n", decoder=DecoderName.SPECULATIVE))
    assert result.text == "x + y"
    # the first draft is wrong: a scripted model does not see the last token of the prompt in a canvas
    assert denoiser.num_steps == 4
    assert [frame.settled_text for frame in frames] == ["", "x", "x", "x + y"]
    assert "".join(cell.text for cell in frames[2].cells) == "x + y"
    assert [cell.is_committed for cell in frames[2].cells][:2] == [True, False]


@pytest.mark.parametrize(
    ("text", "fill", "most"),
    [
        pytest.param("first_value = compute(1)\nsecond = first_|\nthird = 3\n", "value = compute", 4, id="above"),
        pytest.param("return self.|\n\nself.total_price = 0\n", "total_price", 3, id="below"),
    ],
)
def test_prompt_lookup_drafts_what_stands_in_the_buffer(engine_of, ask, text, fill, most):
    engine, denoiser = engine_of(fill)
    assert engine.fill(ask(text, decoder=DecoderName.PROMPT_LOOKUP)).text == fill
    assert denoiser.num_steps <= most
    engine, denoiser = engine_of(fill)
    engine.fill(ask(text, decoder=DecoderName.AUTOREGRESSIVE))
    assert denoiser.num_steps == len(fill) + 1
