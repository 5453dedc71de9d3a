"""Model specifications from GGUF metadata: trained, repacked, masked and causal models."""

import re
from collections.abc import Mapping
from dataclasses import replace

import pytest

from dg_lsp.canvas.spec import (
    DecoderName,
    ExpectedPasses,
    FimOrder,
    FimTokens,
    MaskSampling,
    PromptCut,
    PromptFormat,
    SideFile,
    SpecialTokens,
    UniformSampling,
    UnmaskOrder,
)
from dg_lsp.errors import ModelUnsupportedError
from dg_lsp.models.metadata import MAX_CAUSAL_PROMPT_TOKENS, describe

# llama.cpp returns all metadata values as strings
TRAINED: Mapping[str, str] = {
    "general.architecture": "qwen3",
    "general.name": "dg-mini",
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.chat_template": "x" * 30,
    "qwen3.context_length": "1024",
    "dg.version": "1",
    "dg.noise": "mask",
    "dg.prompt_format": "fim",
    "dg.mask_token_id": "5",
    "dg.end_token_id": "1",
    "dg.prefix_token_id": "2",
    "dg.suffix_token_id": "3",
    "dg.middle_token_id": "4",
    "dg.banned_token_ids": "0,2,3,4,5",
    "dg.canvas_lengths": "8,16,32,64",
    "dg.max_prompt_tokens": "512",
    "dg.confidence_threshold": "0.900000",
    "dg.max_denoising_steps": "64",
    "dg.causal": "true",
}
REPACKED: Mapping[str, str] = {
    "general.architecture": "gemma4",
    "gemma4.context_length": "262144",
    "dg.version": "1",
    "dg.noise": "uniform",
    "dg.prompt_format": "instruct",
    "dg.template": "gemma4",
    "dg.self_conditioning": "dg.selfcond.gguf",
    "dg.self_conditioning.sha256": "0a" * 32,
    "dg.canvas_lengths": "16,32,64,128,256",
    "dg.max_prompt_tokens": "8192",
    "dg.entropy_bound": "0.100000",
    "dg.t_max": "0.800000",
    "dg.t_min": "0.400000",
    "dg.max_denoising_steps": "48",
    "dg.stability_threshold": "1",
    "dg.stop_confidence": "0.005000",
    "dg.end_token_ids": "1,106,50",
    "dg.banned_token_ids": "0,2,100",
}


def changed(metadata, changes):
    return {key: value for key, value in {**metadata, **(changes or {})}.items() if value is not None}


def trained(changes: Mapping[str, str | None] | None = None):
    return describe(changed(TRAINED, changes), 8192, "dg-mini")


def repacked(changes: Mapping[str, str | None] | None = None):
    return describe(changed(REPACKED, changes), 262144, "dg")


# trained models


def test_a_trained_model_is_described_by_its_keys():
    spec = trained()
    assert spec.sampling == MaskSampling(5, 0.9, 64, UnmaskOrder.LEFTMOST)
    assert spec.fim == FimTokens(prefix_id=2, suffix_id=3, middle_id=4, family="dg-mini", evidence="metadata")
    assert (spec.prompt_format, spec.end_ids, spec.banned_ids) == (PromptFormat.FIM, (1,), (0, 2, 3, 4, 5))
    assert (spec.canvas_lengths, spec.max_prompt_tokens, spec.has_causal_head) == ((8, 16, 32, 64), 512, True)


@pytest.mark.parametrize(
    ("changes", "name", "value"),
    [
        ({"dg.causal": "false"}, "has_causal_head", False),
        ({"dg.cut": "token"}, "cut", PromptCut.TOKEN),
        ({}, "cut", PromptCut.CHARACTER),
        ({"dg.shift": "true"}, "is_shifted", True),
        ({"dg.start_token_ids": "0"}, "start_ids", (0,)),
        ({"dg.snippets": "true"}, "takes_snippets", True),
        ({"dg.languages": "python, typescriptreact"}, "languages", ("python", "typescriptreact")),
        ({}, "languages", ("python",)),
        ({"general.name": "mine"}, "languages", ()),
        ({"dg.banned_token_ids": ""}, "banned_ids", (5,)),
    ],
)
def test_optional_keys_of_a_trained_model_are_read(changes, name, value):
    assert getattr(trained(changes), name) == value


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({}, (False, 0), id="with canvases"),
        pytest.param({"dg.noise": "none"}, (True, 256), id="without canvases"),
        pytest.param({"dg.noise": "none", "qwen3.context_length": "512"}, (False, 0), id="no longer context"),
    ],
)
def test_a_model_of_long_contexts_has_room_for_code_of_other_places(changes, expected):
    spec = trained(changes)
    assert (spec.takes_snippets, spec.snippet_tokens) == expected


def test_expected_passes_of_known_decoders_are_read():
    rows = {"block.draft-verify": "0,4,4.5,0.25", "line-end.causal": "7.5,0,0,0.3", "block.of-a-later-version": "?"}
    assert trained({f"dg.plan.{name}": row for name, row in rows.items()}).expectations == (
        ExpectedPasses("block", DecoderName.SPECULATIVE, 0.0, 4.0, 4.5, 0.25),
        ExpectedPasses("line-end", DecoderName.AUTOREGRESSIVE, 7.5, 0.0, 0.0, 0.3),
    )


@pytest.mark.parametrize(
    ("described", "key", "advice"),
    [
        *((trained, key, "--model") for key in TRAINED if key.startswith("dg.") and key != "dg.causal"),
        *((repacked, key, "dg-lsp models convert") for key in REPACKED if key.startswith("dg.") and key != "dg.noise"),
    ],
)
def test_a_missing_key_is_named(described, key, advice):
    with pytest.raises(ModelUnsupportedError, match=rf"{key}.*{advice}"):
        described({key: None})


INVALID_TRAINED = {
    "dg.version": ("2",),
    "dg.noise": ("gaussian",),
    "dg.prompt_format": ("instruct",),
    "dg.mask_token_id": ("8192", "-1", "1.0", "9" * 5000),
    "dg.banned_token_ids": ("0,,2", "0,9000", "0,1"),
    "dg.canvas_lengths": ("0,8", "8,x", "16,8"),
    "dg.confidence_threshold": ("nan", "1.5"),
    "dg.causal": ("1",),
    "dg.plan.line-end.causal": ("7.5,0,0", "7.5,0,0,0", "nan,0,0,0.5"),
    "dg.plan.causal": ("1,0,0,0.5",),
    "dg.cut": ("word",),
    "dg.languages": ("python,",),
}
INVALID_REPACKED = {
    "dg.prompt_format": ("fim",),
    "dg.self_conditioning": ("", "../other.gguf", "a\\b.gguf", ".."),
    "dg.self_conditioning.sha256": ("0A" * 32, "0a"),
    "dg.entropy_bound": ("0", "inf", "x"),
    "dg.t_min": ("0.9",),
    "dg.end_token_ids": ("", "262144"),
    "dg.banned_token_ids": ("1",),
}


@pytest.mark.parametrize(
    ("described", "key", "value"),
    [
        *((trained, key, value) for key, values in INVALID_TRAINED.items() for value in values),
        *((repacked, key, value) for key, values in INVALID_REPACKED.items() for value in values),
    ],
)
def test_an_invalid_value_is_refused_by_its_key(described, key, value):
    with pytest.raises(ModelUnsupportedError, match=re.escape(key)) as caught:
        described({key: value})
    assert len(str(caught.value)) < 400


# repacked DiffusionGemma


def test_a_repacked_model_is_described_by_its_keys():
    spec = repacked()
    assert spec.sampling == UniformSampling(0.1, 0.8, 0.4, 48, 1, 0.005)
    assert (spec.end_ids, spec.banned_ids) == ((1, 106, 50), (0, 2, 100))
    assert (spec.prompt_format, spec.template) == (PromptFormat.INSTRUCT, "gemma4")
    assert (spec.canvas_lengths, spec.max_prompt_tokens) == ((16, 32, 64, 128, 256), 8192)
    assert spec.self_conditioning == SideFile("dg.selfcond.gguf", "0a" * 32)
    assert not spec.has_causal_head
    assert ("dg.t_max", "0.800000") in spec.metadata


# masked diffusion models of other origin

VOCAB = 152_064
MASKED_SPECIALS = SpecialTokens((151_643, 151_644, 151_645, 151_666, 151_667), end_ids=(151_643, 151_645))


def masked(architecture, name="", specials=MASKED_SPECIALS, vocab_size=VOCAB, changes=None):
    metadata = {"general.architecture": architecture, "general.name": name}
    return describe(changed(metadata, changes), vocab_size, "file", specials)


@pytest.mark.parametrize(
    ("architecture", "name", "length", "window", "threshold"),
    [
        ("qwen3moe", "SDAR-30B-A3B-Chat-b16", 16, 0, 0.85),
        ("qwen2", "Fast_dLLM_v2_7B", 32, 8, 0.9),
        ("bailingmoe2", "LLaDA2.0 Mini", 32, 0, 0.95),
    ],
)
def test_a_model_with_blocks_has_canvases_of_their_length(architecture, name, length, window, threshold):
    spec = masked(architecture, name, vocab_size=160_000)
    assert (spec.block_length, spec.canvas_lengths) == (length, (length,))
    assert (spec.sampling.window_length, spec.sampling.confidence_threshold) == (window, threshold)
    assert spec.is_shifted is (architecture == "qwen2")
    assert not (spec.is_bidirectional or spec.has_causal_head or spec.has_free_canvas)
    assert spec.sampling.mask_id in spec.banned_ids
    assert spec.prompt_format is PromptFormat.PREFIX
    assert spec.longest_block == 64, "a fill takes several blocks"


def test_a_deleted_token_of_dreamon_does_not_end_the_text():
    spec = masked("dream", "DreamOn v0 7B")
    assert (spec.sampling.expand_id, spec.sampling.delete_id) == (151_667, 151_643)
    assert (spec.end_ids, spec.gap_lengths) == ((151_645,), (16,))
    assert set(spec.banned_ids) == {151_644, 151_666}


def test_the_metadata_of_the_file_has_priority_over_the_family():
    spec = masked("dream", changes={"tokenizer.ggml.mask_token_id": "7", "diffusion.shift_logits": "false"})
    assert (spec.sampling.mask_id, spec.is_shifted) == (7, False)


@pytest.mark.parametrize(("architecture", "start_ids"), [("dream", (151_665,)), ("rnd1", ())])
def test_only_dream_starts_with_the_first_token_of_its_tokenizer(architecture, start_ids):
    assert masked(architecture, changes={"tokenizer.ggml.bos_token_id": "151665"}).start_ids == start_ids


def test_a_vocabulary_without_the_mask_is_refused():
    with pytest.raises(ModelUnsupportedError, match="no mask 126336 in a vocabulary of 1000"):
        masked("llada", vocab_size=1000)


# causal models

STOCK = {"general.architecture": "qwen2", "qwen2.context_length": "32768", "general.name": "Coder"}
FIM = FimTokens(10, 11, 12, FimOrder.PREFIX_FIRST)
CAUSAL_SPECIALS = SpecialTokens(control_ids=(1, 2, 10, 11, 12), end_ids=(2,), start_ids=(1,), fim=FIM)


def test_a_causal_model_fills_the_middle_if_it_has_the_tokens_for_that():
    spec = describe(STOCK, 32000, "coder", CAUSAL_SPECIALS)
    assert (spec.noise, spec.has_causal_head, spec.canvas_lengths) == ("none", True, ())
    assert (spec.prompt_format, spec.fim) == (PromptFormat.FIM, FIM)
    assert (spec.start_ids, spec.end_ids, spec.banned_ids) == ((1,), (2,), (1, 10, 11, 12))
    prefix_only = describe(STOCK, 32000, "coder", replace(CAUSAL_SPECIALS, fim=None))
    assert (prefix_only.prompt_format, prefix_only.fim) == (PromptFormat.PREFIX, None)


@pytest.mark.parametrize(
    ("context", "limit"),
    [("512", 384), ("100", 1), ("1.5", MAX_CAUSAL_PROMPT_TOKENS), (None, MAX_CAUSAL_PROMPT_TOKENS)],
)
def test_the_prompt_of_a_causal_model_leaves_space_for_the_completion(context, limit):
    metadata = changed(STOCK, {"qwen2.context_length": context})
    assert describe(metadata, 32000, "coder", CAUSAL_SPECIALS).max_prompt_tokens == limit


@pytest.mark.parametrize(
    ("metadata", "specials", "message"),
    [
        ({"general.architecture": "diffusion-gemma"}, CAUSAL_SPECIALS, "diffusion-gemma GGUF"),
        ({**STOCK, "dg.noise": "mask"}, CAUSAL_SPECIALS, r"dg\.version is missing"),
        ({"general.architecture": "llama"}, None, r"llama GGUF that describes no diffusion model: dg.version"),
    ],
)
def test_a_diffusion_model_is_never_used_as_a_causal_one(metadata, specials, message):
    with pytest.raises(ModelUnsupportedError, match=message):
        describe(metadata, 32000, "file.gguf", specials)
