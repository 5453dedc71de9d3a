"""Costs measured with a clock that only passes move."""

from dataclasses import replace

import numpy as np
import pytest

from dg_lsp.backends.scripted import MASK_SPEC, ScriptedDenoiser
from dg_lsp.engine.decoder_selection import measure_costs


class Clocked(ScriptedDenoiser):
    """A token costs a causal pass 1 ms and a canvas 2 ms."""

    now = 0.0

    def extend(self, slot, ids):
        self.now += 1e-3 * len(ids)
        return super().extend(slot, ids)

    def predict(self, slot, canvases, temperature, rng, _lanes=()):
        self.now += 2e-3 * sum(map(len, canvases))
        return super().predict(slot, canvases, temperature, rng)


def test_each_kind_of_pass_is_measured():
    denoiser = Clocked("x")
    costs = measure_costs(denoiser, clock=lambda: denoiser.now)
    assert costs.causal == (pytest.approx((1, 1.0)), pytest.approx((8, 8.0)))
    assert costs.canvas == (pytest.approx((8, 16.0)), pytest.approx((32, 64.0)))


def test_what_the_model_cannot_do_is_not_measured():
    no_head = Clocked("x", spec=replace(MASK_SPEC, has_causal_head=False))
    assert measure_costs(no_head).causal == ()
    no_canvas = Clocked("x", spec=replace(MASK_SPEC, sampling=None, canvas_lengths=()))
    assert measure_costs(no_canvas).canvas == ()


def test_nothing_is_left_in_the_cache():
    denoiser = Clocked("x")
    measure_costs(denoiser)
    before = denoiser.num_prefilled
    for slot in range(denoiser.num_slots):
        denoiser.prefill(slot, np.arange(10, 20, dtype=np.int32))
    assert denoiser.num_prefilled - before == 10 * denoiser.num_slots


def test_a_model_with_short_canvases_is_measured_at_what_it_has():
    denoiser = Clocked("x", spec=replace(MASK_SPEC, canvas_lengths=(8,)))
    assert [length for length, _ in measure_costs(denoiser).canvas] == [8]
