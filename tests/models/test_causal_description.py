"""GGUF files that say nothing of diffusion: causal models."""

from dataclasses import replace

import pytest

from dg_lsp.canvas.spec import FimOrder, FimTokens, PromptFormat, SpecialTokens
from dg_lsp.errors import ModelUnsupportedError
from dg_lsp.models.metadata import MAX_CAUSAL_PROMPT_TOKENS, describe

STOCK = {"general.architecture": "qwen2", "qwen2.context_length": "32768", "general.name": "Coder"}
FIM = FimTokens(10, 11, 12, FimOrder.PREFIX_FIRST)
SPECIALS = SpecialTokens(control_ids=(1, 2, 10, 11, 12), end_ids=(2,), start_ids=(1,), fim=FIM)


def test_a_model_with_sentinels_fills_the_middle():
    spec = describe(STOCK, 32000, "coder", SPECIALS)
    assert spec.sampling is None
    assert spec.noise == "none"
    assert spec.has_causal_head
    assert spec.prompt_format is PromptFormat.FIM
    assert spec.fim == FIM
    assert spec.start_ids == (1,)
    assert spec.end_ids == (2,)
    assert spec.banned_ids == (1, 10, 11, 12)
    assert spec.canvas_lengths == ()
    assert spec.max_prompt_tokens == MAX_CAUSAL_PROMPT_TOKENS


def test_one_without_sees_the_prefix_only():
    spec = describe(STOCK, 32000, "coder", replace(SPECIALS, fim=None))
    assert spec.prompt_format is PromptFormat.PREFIX
    assert spec.fim is None


@pytest.mark.parametrize(
    ("context", "prompt"), [("512", 384), ("100", 1), ("1.5", MAX_CAUSAL_PROMPT_TOKENS), (None, MAX_CAUSAL_PROMPT_TOKENS)]
)
def test_the_prompt_leaves_room_for_the_fill(context, prompt):
    metadata = {key: value for key, value in {**STOCK, "qwen2.context_length": context}.items() if value}
    assert describe(metadata, 32000, "coder", SPECIALS).max_prompt_tokens == prompt


def test_a_diffusion_gemma_that_was_not_repacked_is_not_taken_for_causal():
    with pytest.raises(ModelUnsupportedError, match="diffusion-gemma GGUF"):
        describe({"general.architecture": "diffusion-gemma"}, 32000, "other", SPECIALS)


def test_a_broken_description_is_no_causal_model():
    with pytest.raises(ModelUnsupportedError, match=r"dg\.version is missing"):
        describe({**STOCK, "dg.noise": "mask"}, 32000, "other", SPECIALS)
