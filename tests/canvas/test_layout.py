from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest

from dg_lsp.backends.scripted import MASK_ID, MASK_SPEC, UNIFORM_SPEC, ByteTokenizer
from dg_lsp.canvas.layout import (
    MAX_CHARS,
    NOTHING,
    CachingTokenizer,
    Layout,
    renoised,
    resume_sampling,
    token_ids,
)
from dg_lsp.canvas.spec import MaskSampling, PromptFormat, UniformSampling

LAYOUT = Layout(token_ids([9, 8]), head_ids=token_ids([20, 21]), tail_ids=token_ids([30, 31, 32]))


def test_a_canvas_has_head_gap_and_as_much_tail_as_fits():
    block = LAYOUT.canvas(3, MASK_SPEC, np.random.default_rng(0), length=7)
    assert block.prompt_ids.tolist() == [9, 8]
    assert block.canvas_ids.tolist() == [20, 21, MASK_ID, MASK_ID, MASK_ID, 30, 31]
    assert block.frozen.tolist() == [True, True, False, False, False, True, True]


@pytest.mark.parametrize(("length", "size"), [(0, 4), (4, 4), (6, 6), (20, 7)])
def test_a_canvas_has_no_more_tail_than_there_is(length, size):
    assert len(LAYOUT.canvas(2, MASK_SPEC, np.random.default_rng(0), length=length).canvas_ids) == size


MASK = MASK_SPEC.sampling.mask_id
IDS = token_ids(range(20, 60))


@pytest.mark.parametrize(("strength", "num_noisy"), [(0.01, 1), (0.3, 12), (0.5, 20), (1.0, 40)])
def test_a_fraction_of_the_tokens_becomes_masks(strength, num_noisy):
    ids = renoised(Layout(NOTHING), IDS, MASK_SPEC, strength, np.random.default_rng(0)).canvas_ids[: len(IDS)]
    assert (ids == MASK).sum() == num_noisy
    assert (ids[ids != MASK] == IDS[ids != MASK]).all()


def test_a_fraction_of_the_tokens_becomes_random_tokens():
    canvas = renoised(Layout(NOTHING), IDS, UNIFORM_SPEC, 0.5, np.random.default_rng(0))
    assert 10 <= (canvas.canvas_ids[: len(IDS)] != IDS).sum() <= 20


def test_uniform_noise_resumes_within_its_schedule():
    left = resume_sampling(UniformSampling(t_max=0.8, t_min=0.4, max_denoising_steps=48), 0.25)
    assert left.max_denoising_steps == 12
    assert left.t_max == pytest.approx(0.5)
    assert (left.top_k_start, left.top_k_end) == (0, 0)
    left = resume_sampling(UniformSampling(top_k_start=900, top_k_end=100), 0.25)
    assert (left.top_k_start, left.top_k_end) == (300, 100)
    mask = MaskSampling(mask_id=1)
    assert resume_sampling(mask, 0.25) is mask


def test_the_tail_of_a_renoised_middle_is_its_end_token():
    canvas = renoised(Layout(token_ids([1, 2, 3])), IDS, MASK_SPEC, 0.5, np.random.default_rng(0))
    assert canvas.prompt_ids.tolist() == [1, 2, 3]
    assert canvas.canvas_ids[-1] == MASK_SPEC.end_ids[0]
    assert np.flatnonzero(canvas.frozen).tolist() == [len(IDS)]


def test_renoised_infill_canvases_have_frozen_text_on_both_sides():
    spec = replace(MASK_SPEC, prompt_format=PromptFormat.INFILL, canvas_lengths=(64,))
    layout = Layout(token_ids([1, 2]), head_ids=token_ids([3, 4]), tail_ids=token_ids([5, 6]))
    canvas = renoised(layout, IDS, spec, 0.5, np.random.default_rng(0))
    assert canvas.canvas_ids[:2].tolist() == [3, 4]
    assert canvas.canvas_ids[-2:].tolist() == [5, 6]
    assert np.flatnonzero(canvas.frozen).tolist() == [0, 1, 42, 43]


def test_a_text_is_tokenized_once():
    inner = Mock(wraps=ByteTokenizer())
    tokenizer = CachingTokenizer(inner, capacity=2)
    for text in ("a", "b", "a", "b", "c", "a"):
        assert tokenizer.encode(text).tolist() == ByteTokenizer().encode(text).tolist()
    assert [call.args for call in inner.encode.call_args_list] == [("a",), ("b",), ("c",), ("a",)]


def test_a_text_longer_than_a_prompt_is_not_kept():
    inner = Mock(wraps=ByteTokenizer())
    tokenizer, text = CachingTokenizer(inner), "a" * (MAX_CHARS + 1)
    for _ in range(2):
        assert len(tokenizer.encode(text)) == len(text)
    assert inner.encode.call_count == 2
