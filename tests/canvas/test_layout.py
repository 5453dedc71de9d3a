from unittest.mock import Mock

import pytest
from scripted import ByteTokenizer

from dg_lsp.canvas.layout import MAX_CHARS, CachingTokenizer
from dg_lsp.canvas.spec import MaskSampling, UniformSampling
from dg_lsp.diffusion.samplers import resume_sampling


def test_uniform_noise_resumes_within_its_schedule():
    left = resume_sampling(UniformSampling(t_max=0.8, t_min=0.4, max_denoising_steps=48), 0.25)
    assert left.max_denoising_steps == 12
    assert left.t_max == pytest.approx(0.5)
    assert (left.top_k_start, left.top_k_end) == (0, 0)
    left = resume_sampling(UniformSampling(top_k_start=900, top_k_end=100), 0.25)
    assert (left.top_k_start, left.top_k_end) == (300, 100)
    mask = MaskSampling(mask_id=1)
    assert resume_sampling(mask, 0.25) is mask


def test_a_text_is_tokenized_once_unless_it_is_longer_than_a_prompt():
    inner = Mock(wraps=ByteTokenizer())
    tokenizer, long = CachingTokenizer(inner, capacity=2), "a" * (MAX_CHARS + 1)
    for text in ("a", "b", "a", "b", "c", "a", long, long):
        assert tokenizer.encode(text).tolist() == ByteTokenizer().encode(text).tolist()
    assert [call.args for call in inner.encode.call_args_list] == [("a",), ("b",), ("c",), ("a",), (long,), (long,)]
