"""What a repacked DiffusionGemma's metadata becomes."""

from collections.abc import Mapping

import pytest

from dg_lsp.canvas.spec import PromptFormat, SideFile, UniformSampling
from dg_lsp.errors import ModelUnsupportedError
from dg_lsp.models.metadata import describe

# as llama.cpp hands a file's metadata over: strings only
GOOD: Mapping[str, str] = {
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


def spec_with(changes: Mapping[str, str | None]):
    merged = {**GOOD, **changes}
    return describe({key: value for key, value in merged.items() if value is not None}, 262144, "dg")


def test_every_key_reaches_the_spec():
    spec = spec_with({})
    assert spec.noise == "uniform"
    assert spec.sampling == UniformSampling(0.1, 0.8, 0.4, 48, 1, 0.005)
    assert spec.end_ids == (1, 106, 50)
    assert spec.banned_ids == (0, 2, 100)
    assert spec.prompt_format is PromptFormat.INSTRUCT
    assert spec.template == "gemma4"
    assert spec.canvas_lengths == (16, 32, 64, 128, 256)
    assert spec.max_prompt_tokens == 8192
    assert spec.self_conditioning == SideFile("dg.selfcond.gguf", "0a" * 32)
    assert not spec.has_causal_head
    assert ("dg.t_max", "0.800000") in spec.metadata


@pytest.mark.parametrize("key", [key for key in GOOD if key.startswith("dg.") and key != "dg.noise"])
def test_a_missing_key_is_named(key):
    with pytest.raises(ModelUnsupportedError, match=key.replace(".", r"\.")) as caught:
        spec_with({key: None})
    assert "repack" in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("dg.version", "2"),
        ("dg.prompt_format", "fim"),
        ("dg.self_conditioning", ""),
        ("dg.self_conditioning", "../other.gguf"),
        ("dg.self_conditioning", "/etc/passwd"),
        ("dg.self_conditioning", "a\\b.gguf"),
        ("dg.self_conditioning", ".."),
        ("dg.self_conditioning.sha256", "0A" * 32),
        ("dg.self_conditioning.sha256", "0a"),
        ("dg.canvas_lengths", "32,16"),
        ("dg.max_prompt_tokens", "0"),
        ("dg.entropy_bound", "0"),
        ("dg.entropy_bound", "inf"),
        ("dg.t_max", "nan"),
        ("dg.t_min", "0.9"),
        ("dg.max_denoising_steps", "0"),
        ("dg.stability_threshold", "-1"),
        ("dg.stop_confidence", "x"),
        ("dg.end_token_ids", ""),
        ("dg.end_token_ids", "262144"),
        ("dg.banned_token_ids", "1"),
    ],
)
def test_an_odd_value_is_refused_and_its_key_named(key, value):
    with pytest.raises(ModelUnsupportedError, match=key.replace(".", r"\.")):
        spec_with({key: value})
