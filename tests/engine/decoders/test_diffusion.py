"""Several canvases that share each pass, and lines that stand before their canvas under uniform noise."""

from types import SimpleNamespace

import numpy as np
from scripted import NUM_SPECIALS, UNIFORM_SPEC, ScriptedDenoiser, engine_for

from dg_lsp.canvas.spec import DecoderName
from dg_lsp.diffusion.denoiser import Prediction
from dg_lsp.engine.decoders import base
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


def wavering(*texts):
    denoiser = Wavering(*texts)
    return engine_for(denoiser, deadline_ms=60_000, early_stop_ms=0), denoiser


def test_line_under_uniform_noise_ends_when_its_tokens_are_settled(ask):
    engine, _ = wavering("b + c\n")
    result = engine.fill(ask("a = |\n", decoder=DecoderName.DIFFUSION))
    assert (result.text, result.steps) == ("b + c", 1 + UNIFORM_SPEC.sampling.stability_threshold)


def test_deadline_under_uniform_noise_returns_the_leading_settled_tokens(ask, monkeypatch):
    engine, denoiser = wavering("b + c")
    monkeypatch.setattr(base, "time", SimpleNamespace(monotonic=lambda: denoiser.num_steps, perf_counter=float))
    result = engine.fill(ask("a = |\n", decoder=DecoderName.DIFFUSION), deadline=3)
    assert (result.text, result.steps) == ("b + c", 3)
    assert engine.fill(ask("a = |\n", decoder=DecoderName.DIFFUSION), deadline=4).is_unfinished


def test_settled_text_of_a_frame_does_not_change_when_a_settled_token_does(ask, frames_of):
    """A stream cannot take text back."""
    engine, _ = wavering("b", "b", "c\n")
    frames, result = frames_of(engine, ask("a = |\n", decoder=DecoderName.DIFFUSION))
    assert result.text == "c"
    assert frames[1].cells[0].is_committed
    assert [frame.settled_text for frame in frames] == ["", "", "", "c\n"]
