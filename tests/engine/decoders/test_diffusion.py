"""Several canvases that share each pass, lines of uniform noise, and gaps of several lengths between frozen text."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scripted import MASK_ID, MASK_SPEC, NUM_SPECIALS, UNIFORM_SPEC, ByteTokenizer, ScriptedDenoiser, engine_for

from dg_lsp.canvas.prompt_format import PREFIX_TAIL
from dg_lsp.canvas.spec import DecoderName, PromptFormat
from dg_lsp.diffusion.denoiser import Prediction
from dg_lsp.engine.decoders import base
from dg_lsp.engine.decoders.diffusion import JOIN_TOKENS
from dg_lsp.postprocess.validate import Reason


def test_canvas_whose_fill_can_be_shown_wins(engine_of, ask):
    engine, denoiser = engine_of([")", "x + y"], tokens_per_step=16)
    result = engine.fill(ask("a = |\n", num_candidates=2))
    assert (result.text, result.decoder) == ("x + y", DecoderName.DIFFUSION)
    assert [rejection.reason for rejection in result.rejections] == [Reason.SYNTAX_ERROR]
    assert denoiser.num_steps == result.steps
    assert result.output_tokens == len("x + y") + 1


class Wavering(ScriptedDenoiser):
    """A model of uniform noise that is sure of a few first tokens, by pass; the others change in every pass."""

    def __init__(self, *texts):
        super().__init__("", spec=UNIFORM_SPEC)
        self._sure = [self.tokenizer.encode(text) for text in texts]

    def _prediction(self, canvas, _target, _temperature, _rng):
        sure = self._sure[min(self.num_steps, len(self._sure)) - 1]
        ids = np.full(len(canvas), NUM_SPECIALS + 97 + self.num_steps % 7, np.int32)
        ids[: len(sure)] = sure
        entropy = np.where(np.arange(len(canvas)) < len(sure), np.float32(0.001), np.float32(3.0))
        return Prediction(ids, ids, np.exp(-entropy), entropy, np.exp(-entropy))


def unhurried(denoiser):
    return engine_for(denoiser, deadline_ms=60_000, early_stop_ms=0), denoiser


def test_line_under_uniform_noise_ends_when_its_tokens_are_settled(ask):
    engine, _ = unhurried(Wavering("b + c\n"))
    result = engine.fill(ask("a = |\n", decoder=DecoderName.DIFFUSION))
    assert (result.text, result.steps) == ("b + c", 1 + UNIFORM_SPEC.sampling.stability_threshold)


def test_deadline_under_uniform_noise_returns_the_leading_settled_tokens(ask, monkeypatch):
    engine, denoiser = unhurried(Wavering("b + c"))
    monkeypatch.setattr(base, "time", SimpleNamespace(monotonic=lambda: denoiser.num_steps, perf_counter=float))
    result = engine.fill(ask("a = |\n", decoder=DecoderName.DIFFUSION), deadline=3)
    assert (result.text, result.steps) == ("b + c", 3)
    assert engine.fill(ask("a = |\n", decoder=DecoderName.DIFFUSION), deadline=4).is_unfinished


def test_settled_text_of_a_frame_does_not_change_when_a_settled_token_does(ask, frames_of):
    """A stream cannot take text back."""
    engine, _ = unhurried(Wavering("b", "b", "c\n"))
    frames, result = frames_of(engine, ask("a = |\n", decoder=DecoderName.DIFFUSION))
    assert result.text == "c"
    assert frames[1].cells[0].is_committed
    assert [frame.settled_text for frame in frames] == ["", "", "", "c\n"]


MASKS, NOISE = (
    replace(spec, fim=None, prompt_format=PromptFormat.INFILL, has_causal_head=False, gap_lengths=(4, 8, 16))
    for spec in (MASK_SPEC, UNIFORM_SPEC)
)
BEFORE, AFTER = "def area(side):\n    result = ", "\n    print('the area of the square')\n    return result\n"
LONG_FILL = "compute(side, side + 1, 'a', 2)."[:32]
both_noises = pytest.mark.parametrize("spec", [MASKS, NOISE], ids=["masks", "uniform noise"])


class Recorded(ScriptedDenoiser):
    """Predicts what stands in a text at each position, and records canvases and lanes of every pass."""

    def __init__(self, text, spec):
        super().__init__(lambda prefix, _suffix: text[len(prefix) :], spec=spec, tokens_per_step=64)
        self.passes, self.lanes = [], []

    def predict(self, slot, canvases, temperature, rng, lanes=(), top_k=None):
        self.passes.append([canvas.tolist() for canvas in canvases])
        self.lanes.append(tuple(lanes))
        return super().predict(slot, canvases, temperature, rng, lanes, top_k)


@pytest.fixture
def around(ask):
    """(engine, denoiser, request) of a fill between `BEFORE` and `AFTER`."""

    def make(fill, spec=MASKS, **options):
        return *unhurried(Recorded(BEFORE + fill + AFTER, spec)), ask(BEFORE + "|" + AFTER, **options)

    return make


@both_noises
@pytest.mark.parametrize("fill", ["side", "side * 2", "side.area(1, 2.)"])
def test_length_that_joins_with_the_suffix_wins(around, spec, fill):
    engine, _, request = around(fill, spec)
    result = engine.fill(request)
    assert (result.text, result.decoder) == (fill, DecoderName.INFILL)
    assert result.candidates[0].score > np.log(0.99) * 2.1


def test_infill_by_name_freezes_the_suffix_of_a_model_with_another_format(around):
    spec = replace(MASK_SPEC, gap_lengths=(4, 8, 16))
    engine, denoiser, request = around("side * 2", spec, decoder=DecoderName.INFILL)
    result = engine.fill(request)
    assert (result.text, result.decoder) == ("side * 2", DecoderName.INFILL)
    head = ByteTokenizer().encode(BEFORE[-PREFIX_TAIL:]).tolist()
    assert all(canvas[:PREFIX_TAIL] == head for canvases in denoiser.passes for canvas in canvases)
    assert engine.spec.prompt_format is PromptFormat.FIM


@both_noises
def test_all_lengths_share_each_pass_and_prefix_and_suffix_stay_frozen(around, frames_of, spec):
    engine, denoiser, request = around("side * 2", spec)
    frames, result = frames_of(engine, request)
    assert len(frames) == result.steps == len(denoiser.passes)
    assert frames[-1].settled_text == "side * 2"
    *lanes, of_joins = denoiser.lanes
    assert (lanes[0], of_joins) == ((0, 1, 2), (3, 4, 5)), "a model conditioned on its last pass has seen the join"
    encode = ByteTokenizer().encode
    head, tail = encode(BEFORE[-PREFIX_TAIL:]).tolist(), encode(AFTER).tolist()
    for lanes, canvases in zip(denoiser.lanes, denoiser.passes, strict=True):
        for lane, canvas in zip(lanes, canvases, strict=True):
            num_joined = JOIN_TOKENS if lanes == of_joins else 0
            after = canvas[PREFIX_TAIL + (4, 8, 16)[lane % 3] :]
            assert canvas[:PREFIX_TAIL] == head
            assert after[num_joined:] == tail[num_joined : len(after)]
            assert num_joined == 0 or after[:num_joined] != tail[:num_joined]


def test_longer_gaps_are_tried_while_the_longest_wins(around):
    engine, denoiser, request = around(LONG_FILL)
    assert engine.fill(request).text == LONG_FILL
    gaps = [max(canvas.count(MASK_ID) for canvas in canvases) for canvases in denoiser.passes]
    assert [gap for gap in gaps if gap > JOIN_TOKENS] == [16, 32, 48]  # 64 less what is frozen


def test_model_that_resizes_gaps_itself_gets_no_longer_one(around):
    engine, denoiser, request = around(LONG_FILL, replace(MASKS, sampling=replace(MASKS.sampling, expand_id=7)))
    engine.fill(request)
    assert len(denoiser.passes) == 2


def test_line_end_ends_the_fill_of_one_line_and_the_join_follows_there(ask):
    engine, denoiser = unhurried(Recorded("a = 12345\nb = 123456789\nc = 1234567890\n", MASKS))
    assert engine.fill(ask("a = |\nb = 0\nz = 1\nz = 2\n")).text == "12345"
    assert len(denoiser.passes) == 2
    encode = ByteTokenizer().encode
    _, middle, longest = denoiser.passes[-1]
    assert middle[:8] == longest[:8] == encode(" = 12345").tolist()
    assert middle[8 + JOIN_TOKENS :] == encode(" 0\nz = 1\nz = 2\n").tolist()[: len(middle) - 8 - JOIN_TOKENS]


def test_infill_without_tokens_only_decodes_the_prompt(around):
    """Clients of HTTP fill the cache so."""
    engine, denoiser, request = around("side", max_tokens=0)
    assert engine.fill(request).is_unfinished
    assert (denoiser.passes, denoiser.num_prefilled > 0) == ([], True)


def test_without_a_suffix_there_is_one_gap_and_no_join(ask):
    engine, denoiser = unhurried(Recorded("a = 1", MASKS))
    assert engine.fill(ask("a = |")).text == "1"
    assert [len(canvases) for canvases in denoiser.passes] == [1]


@pytest.mark.parametrize(
    ("fill", "ending"),
    [("side", "end"), ("side\n", "end"), ("a = 1\nb = 2", "tokens")],
    ids=["one line", "line end", "two"],
)
def test_a_fill_that_the_line_limit_cuts_has_not_ended(around, fill, ending):
    engine, _, request = around(fill)
    result = engine.fill(request)
    assert (result.text, result.ending.value) == (fill.partition("\n")[0], ending)
