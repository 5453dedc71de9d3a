"""Selection of a decoder from costs and expected passes made by hand, and costs by a clock that only passes move."""

from dataclasses import replace

import numpy as np
import pytest
from scripted import MASK_SPEC, ScriptedDenoiser

from dg_lsp.canvas.spec import DecoderName, ExpectedPasses
from dg_lsp.engine.decoder_selection import NO_COSTS, DecoderSelection, PositionKind, StepCosts, measure_costs

CPU = StepCosts(((1, 2.0), (8, 8.0)), ((16, 11.0), (32, 21.0)))
GPU = StepCosts(((1, 3.0), (8, 3.1)), ((16, 3.1), (32, 3.2)))
AUTOREGRESSIVE, LOOKUP, DIFFUSION, SPECULATIVE = TABLE = (
    ExpectedPasses("line-end", DecoderName.AUTOREGRESSIVE, 8.0, 0.0, 0.0, 0.3),
    ExpectedPasses("line-end", DecoderName.PROMPT_LOOKUP, 3.0, 2.0, 0.0, 0.3),
    ExpectedPasses("line-end", DecoderName.DIFFUSION, 0.0, 0.0, 4.0, 0.3),
    ExpectedPasses("line-end", DecoderName.SPECULATIVE, 0.0, 3.0, 3.0, 0.3),
)
CAUSAL_SPEC = replace(MASK_SPEC, sampling=None, canvas_lengths=())
DRAFTER = replace(MASK_SPEC, is_drafter=True)
SPEC = replace(MASK_SPEC, expectations=TABLE, canvas_lengths=(16, 32, 64))


def select(spec, costs, kind=PositionKind.LINE_END, **request):
    return DecoderSelection(spec=spec, costs=costs, kind=kind, **request)


def selection(*rows, costs=CPU, **request):
    return select(replace(SPEC, expectations=rows or TABLE), costs, **request)


@pytest.mark.parametrize(
    ("costs", "singles", "hits", "decoder"),
    [
        pytest.param(CPU, 20.0, 0.3, DecoderName.AUTOREGRESSIVE, id="CPU"),
        pytest.param(GPU, 20.0, 0.3, DecoderName.DIFFUSION, id="GPU"),
        pytest.param(CPU, 30.0, 0.9, DecoderName.DIFFUSION, id="CPU, and more right answers"),
    ],
)
def test_costs_of_passes_and_right_answers_decide(costs, singles, hits, decoder):
    rows = AUTOREGRESSIVE, replace(LOOKUP, singles=singles), replace(DIFFUSION, hits=hits), SPECULATIVE
    assert selection(*rows, costs=costs).choose() is decoder


def test_prompt_tokens_that_are_not_cached_count_for_each_decoder():
    rows = replace(AUTOREGRESSIVE, hits=0.2), replace(DIFFUSION, hits=0.4, canvases=7.0), LOOKUP, SPECULATIVE
    some, none, many = (
        selection(*rows, costs=replace(CPU, prompt_token=1.0), num_missing=num) for num in (100, 0, 500)
    )
    assert some.expected_ms(DecoderName.AUTOREGRESSIVE) == pytest.approx((8 * 2 + 100) / 0.2)
    chosen = [none.choose(), many.choose()]
    assert chosen == [DecoderName.PROMPT_LOOKUP, DecoderName.DIFFUSION]


@pytest.mark.parametrize(
    ("spec", "costs", "decoder"),
    [
        pytest.param(MASK_SPEC, CPU, DecoderName.PROMPT_LOOKUP, id="a canvas costs ten tokens"),
        pytest.param(MASK_SPEC, replace(CPU, canvas=((16, 0.2), (64, 0.3))), DecoderName.DIFFUSION, id="cheap canvas"),
        pytest.param(CAUSAL_SPEC, CPU, DecoderName.PROMPT_LOOKUP, id="no canvas"),
        pytest.param(replace(MASK_SPEC, has_causal_head=False), CPU, DecoderName.DIFFUSION, id="no causal head"),
        pytest.param(MASK_SPEC, NO_COSTS, DecoderName.DIFFUSION, id="no costs"),
        pytest.param(DRAFTER, GPU, DecoderName.SPECULATIVE, id="drafter"),
    ],
)
def test_costs_decide_for_texts_too(spec, costs, decoder):
    assert select(spec, costs, PositionKind.TEXT).choose() is decoder


@pytest.mark.parametrize(
    ("decoder", "num_passes"),
    [(DecoderName.AUTOREGRESSIVE, 64), (DecoderName.DIFFUSION, 16), (DecoderName.SPECULATIVE, 16)],
)
def test_passes_until_the_early_stop_are_the_same_after_a_slower_measurement(decoder, num_passes):
    slower = StepCosts(*(tuple((size, 1.2 * ms) for size, ms in points) for points in (CPU.causal, CPU.canvas)))
    for costs in (CPU, slower):
        assert selection(costs=costs).num_passes(150.0, decoder, 16) == num_passes
    assert selection().num_passes(float("inf"), decoder, 16) == float("inf")
    assert selection(costs=NO_COSTS).num_passes(0.1, decoder, 16) < 1


class Clocked(ScriptedDenoiser):
    """A token takes 1 ms in a causal pass and 2 ms in a canvas."""

    seconds = 0.0

    def extend(self, slot, ids, _allowed=None):
        self.seconds += 1e-3 * len(ids)
        return super().extend(slot, ids)

    def predict(self, slot, canvases, *options):
        self.seconds += 2e-3 * sum(map(len, canvases))
        return super().predict(slot, canvases, *options)


def test_each_kind_of_pass_is_measured_and_the_cache_is_empty_afterwards():
    denoiser = Clocked("x")
    costs = measure_costs(denoiser, clock=lambda: denoiser.seconds)
    assert costs.causal == (pytest.approx((1, 1.0)), pytest.approx((8, 8.0)))
    assert costs.canvas == (pytest.approx((8, 16.0)), pytest.approx((32, 64.0)))
    for slot in range(denoiser.num_slots):
        assert denoiser.prefill(slot, np.arange(10, 20, dtype=np.int32)) == 10
