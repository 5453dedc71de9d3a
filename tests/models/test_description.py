from collections.abc import Mapping

import pytest

from dg_lsp.canvas.spec import DecoderName, ExpectedPasses, FimTokens, MaskSampling, PromptFormat, UnmaskOrder
from dg_lsp.errors import ModelUnsupportedError
from dg_lsp.models.metadata import describe

# as llama.cpp hands a file's metadata over: strings only
GOOD: Mapping[str, str] = {
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
    "dg.tokens_seen": "1000000",
    "dg.config": "tiny",
}


def spec_with(changes: Mapping[str, str | None]):
    merged = {**GOOD, **changes}
    return describe({key: value for key, value in merged.items() if value is not None}, 8192, "dg-mini")


def test_every_key_reaches_the_spec():
    spec = describe(GOOD, 8192, "dg-mini")
    assert spec.name == "dg-mini"
    assert spec.vocab_size == 8192
    assert spec.sampling == MaskSampling(5, 0.9, 64, UnmaskOrder.LEFTMOST)
    assert spec.end_ids == (1,)
    assert spec.prompt_format is PromptFormat.FIM
    assert spec.fim == FimTokens(prefix_id=2, suffix_id=3, middle_id=4)
    assert spec.banned_ids == (0, 2, 3, 4, 5)
    assert spec.canvas_lengths == (8, 16, 32, 64)
    assert spec.max_prompt_tokens == 512


def test_metadata_keeps_what_a_person_reads_and_no_vocabulary():
    shown = dict(describe({**GOOD, "general.description": "y" * 5000}, 8192, "m").metadata)
    assert shown["general.architecture"] == "qwen3"
    assert shown["dg.tokens_seen"] == "1000000"
    assert not [key for key in shown if key.startswith("tokenizer.")]
    assert "general.description" not in shown


def test_the_mask_is_never_predicted_whatever_the_file_says():
    assert 5 in spec_with({"dg.banned_token_ids": ""}).banned_ids


def test_a_canvas_only_model_says_so_and_is_taken():
    assert ("dg.causal", "false") in spec_with({"dg.causal": "false"}).metadata


def test_the_causal_head_is_there_only_if_the_file_says_so():
    assert describe(GOOD, 8192, "m").has_causal_head
    assert not spec_with({"dg.causal": "false"}).has_causal_head
    assert not spec_with({"dg.causal": None}).has_causal_head


def test_a_model_says_whether_the_buffer_is_heard():
    assert spec_with({}).repetition_match == 0
    assert spec_with({"dg.echo_match": "3"}).repetition_match == 3
    assert spec_with({"dg.echo_match": "0"}).repetition_match == 0
    with pytest.raises(ModelUnsupportedError, match=r"dg\.echo_match"):
        spec_with({"dg.echo_match": "2"})


def test_expected_passes_are_read_by_the_names_of_the_file():
    rows = {
        "block.draft-verify": "0,4,4.5,0.25",
        "line-end.causal": "7.5,0,0,0.3",
        "line-end.race": "0,0,9,1",
    }
    spec = spec_with({f"dg.plan.{name}": row for name, row in rows.items()} | {"dg.plan.block.of-a-later-version": "?"})
    assert spec.expectations == (
        ExpectedPasses("block", DecoderName.SPECULATIVE, 0.0, 4.0, 4.5, 0.25),
        ExpectedPasses("line-end", DecoderName.AUTOREGRESSIVE, 7.5, 0.0, 0.0, 0.3),
        ExpectedPasses("line-end", DecoderName.DIFFUSION, 0.0, 0.0, 9.0, 1.0, num_canvases=2),
    )


@pytest.mark.parametrize("key", [key for key in GOOD if key.startswith("dg.")])
def test_a_missing_key_is_named(key):
    if key in ("dg.causal", "dg.tokens_seen", "dg.config"):
        assert spec_with({key: None}).name == "dg-mini"
        return
    with pytest.raises(ModelUnsupportedError, match=key) as caught:
        spec_with({key: None})
    assert "--model" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("dg.version", "2"),
        ("dg.version", "one"),
        ("dg.noise", "none"),
        ("dg.prompt_format", "instruct"),
        ("dg.prompt_format", ""),
        ("dg.mask_token_id", "8192"),
        ("dg.mask_token_id", "-1"),
        ("dg.mask_token_id", "²"),
        ("dg.mask_token_id", "9" * 5000),
        ("dg.end_token_id", "1.0"),
        ("dg.banned_token_ids", "0,,2"),
        ("dg.banned_token_ids", "0,9000"),
        ("dg.banned_token_ids", "0 2 3"),
        ("dg.banned_token_ids", "0,1"),
        ("dg.canvas_lengths", ""),
        ("dg.canvas_lengths", "0,8"),
        ("dg.canvas_lengths", "16,8"),
        ("dg.canvas_lengths", "8,8"),
        ("dg.max_prompt_tokens", "0"),
        ("dg.confidence_threshold", "nan"),
        ("dg.confidence_threshold", "0"),
        ("dg.confidence_threshold", "1.5"),
        ("dg.confidence_threshold", "high"),
        ("dg.max_denoising_steps", "0"),
        ("dg.causal", "1"),
        ("dg.plan.line-end.causal", "7.5,0,0"),
        ("dg.plan.line-end.causal", "7.5,0,0,0"),
        ("dg.plan.line-end.causal", "0,0,0,0.5"),
        ("dg.plan.line-end.causal", "nan,0,0,0.5"),
        ("dg.plan.line-end.causal", "many,0,0,0.5"),
        ("dg.plan.causal", "1,0,0,0.5"),
    ],
)
def test_an_odd_value_is_refused_and_its_key_named(key, value):
    with pytest.raises(ModelUnsupportedError, match=key) as caught:
        spec_with({key: value})
    assert len(str(caught.value)) < 400


def test_special_tokens_must_differ():
    with pytest.raises(ModelUnsupportedError, match="not all different"):
        spec_with({"dg.end_token_id": "2", "dg.banned_token_ids": "0"})


def test_a_stock_model_is_told_apart_from_a_broken_description():
    with pytest.raises(ModelUnsupportedError, match=r"llama GGUF that describes no diffusion model: dg.version"):
        describe({"general.architecture": "llama"}, 32000, "other.gguf")
