from dataclasses import replace

import numpy as np
import pytest

from dg_lsp.backends.scripted import MASK_SPEC
from dg_lsp.canvas.layout import Layout, Renoise, renoised, resume_sampling, token_ids
from dg_lsp.canvas.spec import MaskSampling, PromptFormat, UniformSampling

MASK = MASK_SPEC.sampling.mask_id
IDS = token_ids(range(20, 60))


@pytest.mark.parametrize(("strength", "num_noisy"), [(0.01, 1), (0.3, 12), (0.5, 20), (1.0, 40)])
def test_so_many_tokens_become_masks_and_the_others_stay(strength, num_noisy):
    canvas = renoised(IDS, strength, MASK_SPEC, np.random.default_rng(0))
    assert (canvas == MASK).sum() == num_noisy
    assert (canvas[canvas != MASK] == IDS[canvas != MASK]).all()


def test_uniform_noise_is_random_tokens():
    spec = replace(MASK_SPEC, sampling=UniformSampling())
    canvas = renoised(IDS, 0.5, spec, np.random.default_rng(0))
    assert 10 <= (canvas != IDS).sum() <= 20


def test_uniform_noise_begins_in_the_middle_of_its_schedule():
    left = resume_sampling(UniformSampling(t_max=0.8, t_min=0.4, max_denoising_steps=48), 0.25)
    assert left.max_denoising_steps == 12
    assert left.t_max == pytest.approx(0.5)
    mask = MaskSampling(mask_id=1)
    assert resume_sampling(mask, 0.25) is mask


def canvases(layout, spec, change=lambda ids: ids):
    renoising = Renoise(layout, IDS, spec, 0.5, np.random.default_rng(0))
    plans = []
    for plan in renoising:
        plans.append(plan)
        renoising.settle(change(IDS[len(renoising.result_ids) :][: int((~plan.frozen).sum())]))
    return plans, renoising.result_ids


def test_a_selection_longer_than_a_canvas_goes_on_after_what_became_of_its_beginning():
    spec = replace(MASK_SPEC, canvas_lengths=(16,))
    layout = Layout(token_ids([1, 2, 3]))
    plans, result = canvases(layout, spec)
    assert result.tolist() == IDS.tolist()
    assert [int((~plan.frozen).sum()) for plan in plans] == [15, 15, 10]
    assert all(len(plan.canvas_ids) <= 16 for plan in plans)
    assert plans[1].prompt_ids.tolist() == [1, 2, 3, *IDS[:15]]
    # a middle ends with its end token, and only there
    assert plans[-1].canvas_ids[-1] == spec.end_ids[0]
    assert plans[-1].frozen[-1]
    assert not plans[0].frozen.any()


def test_infill_canvases_stand_between_frozen_text():
    spec = replace(MASK_SPEC, prompt_format=PromptFormat.INFILL, canvas_lengths=(64,))
    layout = Layout(token_ids([1, 2]), head_ids=token_ids([3, 4]), tail_ids=token_ids([5, 6]))
    [plan], result = canvases(layout, spec)
    assert plan.canvas_ids[:2].tolist() == [3, 4]
    assert plan.canvas_ids[-2:].tolist() == [5, 6]
    assert np.flatnonzero(plan.frozen).tolist() == [0, 1, 42, 43]
    assert result.tolist() == IDS.tolist()


def test_a_head_is_prompt_from_the_second_canvas_on():
    spec = replace(MASK_SPEC, prompt_format=PromptFormat.INFILL, canvas_lengths=(32,))
    layout = Layout(token_ids([1]), head_ids=token_ids([3, 4]))
    plans, _ = canvases(layout, spec)
    assert plans[1].prompt_ids.tolist()[:3] == [1, 3, 4]
    assert plans[1].prompt_ids.tolist()[3:] == IDS[: int((~plans[0].frozen).sum())].tolist()
