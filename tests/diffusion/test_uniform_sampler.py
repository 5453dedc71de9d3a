"""Every expected step was calculated by hand.

`tests/backends/transformers/test_parity.py` compares the loop with transformers' `generate`.
"""

import numpy as np
import pytest

from dg_lsp.canvas.layout import token_ids
from dg_lsp.canvas.spec import MaskSampling, UniformSampling
from dg_lsp.diffusion.denoiser import Prediction, TopK
from dg_lsp.diffusion.samplers import renoise, top_k

from .conftest import canvas

VOCAB = 1000


def predicts(argmax, entropy, sampled=None):
    floats = np.array(entropy, np.float32)
    sampled_ids = token_ids(argmax if sampled is None else sampled)
    confidence = np.exp(-floats)
    return Prediction(token_ids(argmax), sampled_ids, confidence, floats, confidence)


def after(step, prediction, **sampling):
    noise = np.random.default_rng(0).integers(0, VOCAB, len(step.canvas_ids), dtype=np.int32)
    return renoise(step, prediction, UniformSampling(**sampling), noise)


def test_frozen_positions_ignore_the_prediction():
    step = after(canvas(7, 2, frozen=[0]), predicts([10, 11], [9.0, 9.0], sampled=[20, 21]))
    assert step.canvas_ids.tolist() == [7, 21]  # the frozen one counts as entropy 0 and uses nothing of the bound
    assert step.draft_ids.tolist() == [7, 11]
    assert step.confidence[0] == 1


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        pytest.param({}, [0, 0, 0, 0], id="off"),
        pytest.param({"top_k": 64}, [64, 64, 64, 64], id="the same in every step"),
        pytest.param({"top_k_start": 100, "top_k_end": 10}, [100, 70, 40, 10], id="falls from the first to the last"),
        pytest.param({"top_k": 5, "top_k_start": 2, "top_k_end": 9}, [2, 4, 7, 9], id="rises, in place of top_k"),
        pytest.param({"top_k_start": 2, "top_k_end": 6}, [2, 3, 5, 6], id="2.33 + 1.33 n, rounded"),
        pytest.param({"top_k_start": 1200, "top_k_end": 300}, [0, 900, 600, 300], id="not more than the vocabulary"),
        pytest.param({"top_k": VOCAB}, [0, 0, 0, 0], id="the whole vocabulary"),
    ],
)
def test_number_of_tokens_changes_linearly_over_the_steps(options, sizes):
    """As `k_step` in llama.cpp's pull request 24427."""
    sampling = UniformSampling(max_denoising_steps=4, **options)
    steps = [top_k(sampling, number, VOCAB) for number in (1, 2, 3, 4)]
    assert [step.size if step else 0 for step in steps] == sizes


def test_tail_counts_if_wanted_and_beside_a_single_token():
    assert top_k(UniformSampling(top_k=64, top_k_tail_correction=True), 1, VOCAB) == TopK(64, counts_tail=True)
    assert top_k(UniformSampling(top_k=1), 1, VOCAB) == TopK(1, counts_tail=True)
    assert top_k(UniformSampling(top_k_start=9, top_k_end=3, max_denoising_steps=1), 1, VOCAB) == TopK(3)
    assert top_k(MaskSampling(mask_id=1), 1, VOCAB) is None


def test_positions_are_settled_while_their_token_is_stable_and_their_entropy_is_little():
    first = after(canvas(1, 2, 3, 4, frozen=[0]), predicts([1, 11, 12, 13], [0.0, 0.01, 0.01, 0.01]))
    second = after(first, predicts([1, 11, 12, 14], [0.0, 0.01, 0.1, 0.01]))
    assert first.committed.tolist() == [True, False, False, False]  # no token is stable after one step
    assert second.committed.tolist() == [True, True, False, False]  # stable and sure, unsure, changed
    assert second.num_settled == 2
    assert not second.is_over
    third = after(second, predicts([1, 20, 12, 14], [0.0, 0.01, 0.1, 0.01]))
    assert third.committed.tolist() == [True, False, False, True]  # changed, unsure, stable and sure
