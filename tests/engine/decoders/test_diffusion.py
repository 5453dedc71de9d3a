"""Several canvases that share each pass."""

from dataclasses import replace

import pytest

from dg_lsp.backends.scripted import MASK_SPEC, ScriptedDenoiser
from dg_lsp.canvas.spec import DecoderName, ExpectedPasses
from dg_lsp.engine.decoder_selection import StepCosts
from dg_lsp.engine.engine import LocalEngine
from dg_lsp.postprocess.validate import Reason
from dg_lsp.settings import CompletionSettings

NO_HURRY = CompletionSettings(deadline_ms=60_000, early_stop_ms=0)


def test_canvas_whose_fill_can_be_shown_wins(engine_of, ask):
    engine, denoiser = engine_of([")", "x + y"], tokens_per_step=16)
    result = engine.fill(ask("a = |\n", num_candidates=2))
    assert (result.text, result.decoder) == ("x + y", DecoderName.DIFFUSION)
    assert [rejection.reason for rejection in result.rejections] == [Reason.SYNTAX_ERROR]
    assert denoiser.num_steps == result.steps
    assert result.output_tokens == len("x + y") + 1


@pytest.mark.parametrize(("passes", "num_canvases"), [(4.0, 2), (9.0, 1)])
def test_one_candidate_gets_two_canvases_where_they_are_expected_to_pay(ask, passes, num_canvases):
    rows = (
        ExpectedPasses("line-end", DecoderName.DIFFUSION, 0.0, 0.0, 8.0, 0.3),
        ExpectedPasses("line-end", DecoderName.DIFFUSION, 0.0, 0.0, passes, 0.3, num_canvases=2),
    )
    spec = replace(MASK_SPEC, expectations=rows, has_causal_head=False)
    denoiser = ScriptedDenoiser([")", "x + y"], spec=spec, tokens_per_step=16)
    costs = StepCosts(canvas=((8, 1.0), (32, 1.0)))
    result = LocalEngine(denoiser, denoiser.tokenizer, NO_HURRY, costs).fill(ask("a = |\n"))
    assert len(result.candidates) + len(result.rejections) == num_canvases
    assert result.text == ("x + y" if num_canvases == 2 else "")
