"""The options of the sampler, of commands and of the user's file."""

import json
from dataclasses import replace

import pytest
from scripted import MASK_SPEC, UNIFORM_SPEC

from dg_lsp.models.registry import MINI
from dg_lsp.settings import parse_settings, settings_tree

CAUSAL_SPEC = replace(MASK_SPEC, name="causal", sampling=None, canvas_lengths=())
CAUSAL = "which has no canvas"
MASKS = "which denoises masks"


@pytest.fixture
def fill(dg_lsp, script, position):
    """`fill(MASK_SPEC, "canvas_length=8", "--json")` fills with a scripted model of this spec."""
    script.fill = "first + second"

    def call(spec, *options):
        script.spec = spec
        words = [word for option in options for word in (("--sampler", option) if "=" in option else (option,))]
        return dg_lsp("fill", position, *words)

    return call


def test_options_change_how_a_canvas_is_denoised(fill):
    tree = fill(MASK_SPEC, "canvas_length=8", "max_denoising_steps=1", "--json").json
    assert (tree["decoder"], tree["canvas_length"], tree["steps"]) == ("diffusion", 8, 2)
    assert tree["text"] == "first + second"
    assert fill(MASK_SPEC, "canvas_length=8", "canvas_length=16", "--json").json["canvas_length"] == 16
    usual = fill(UNIFORM_SPEC, "--json").json["steps"]
    assert fill(UNIFORM_SPEC, "entropy_bound=5", "--json").json["steps"] < usual
    assert fill(UNIFORM_SPEC, "stability_threshold=30", "--json").json["steps"] > usual
    every = ("t_max=1", "t_min=0.5", "confidence_threshold=0.001", "max_denoising_steps=3")
    assert fill(UNIFORM_SPEC, *every, "canvas_length=32", "--json").json["steps"] == 3
    for top_k in (("--top-k", "64"), ("top_k_start=200", "top_k_end=8", "top_k_tail_correction=true")):
        assert fill(UNIFORM_SPEC, *top_k, "--json").json["text"] == "first + second"


@pytest.mark.parametrize(
    ("spec", "option", "reason"),
    [
        (MASK_SPEC, "entropy_bound=0.1", f"entropy_bound does not apply to scripted, {MASKS}"),
        (MASK_SPEC, "confidence_threshold=2", "confidence_threshold is a probability"),
        (MASK_SPEC, "canvas_length=65", "choose at most 64"),
        (MASK_SPEC, "canvas_length=8 --decoder autoregressive", "the decoder autoregressive"),
        (MASK_SPEC, "thinking=true", "thinking does not apply to code"),
        (MASK_SPEC, "thinking=false", "whose chat template has no thinking"),
        (CAUSAL_SPEC, "canvas_length=1", f"canvas_length does not apply to causal, {CAUSAL}"),
        (UNIFORM_SPEC, "t_min=0.9", "t_min 0.9 is above the temperature of the first step, 0.8"),
        (UNIFORM_SPEC, "top_k_start=64", "top_k_end is 0"),
        (MASK_SPEC, "top_k_start=64", f"top_k_start does not apply to scripted, {MASKS}"),
    ],
)
def test_an_option_that_does_not_apply_is_refused_by_name(fill, spec, option, reason):
    assert reason in fill(spec, *option.split()).error(2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("t_max=0", "--sampler.t_max must be >= 0.01"),
        ("canvas_length=1.5", "canvas_length must be a whole number, not 1.5"),
        ("prompt_attention='exact'", "--sampler prompt_attention: the names are canvas_length, "),
        ("canvas_length=32 32", "--sampler takes NAME=VALUE, for example canvas_length=32, not 32"),
    ],
)
def test_a_wrong_value_is_refused_before_a_model_is_opened(dg_lsp, script, position, options, message):
    for command in (("fill", position), ("chat", "-m", "hi")):
        given = [word for option in options.split() for word in ("--sampler", option)]
        assert message in dg_lsp(*command, *given).error(2)
    assert script.denoiser is None


def test_the_users_file_sets_the_models_own_values(dg_lsp, user_settings, position):
    user_settings('[model.sampler.dg-mini]\ncanvas_length = 16\n[model.sampler."my model"]\nt_max = 1\n')
    tree = dg_lsp("fill", position, "--decoder", "diffusion", "--json").json
    assert (tree["model"], tree["canvas_length"]) == (MINI, 16)
    tree = dg_lsp("fill", position, "--sampler", "canvas_length=32", "--json").json
    assert tree["canvas_length"] == 32
    user_settings("[model.sampler.dg-mini]\nentropy_bound = 0.5\n")
    message = dg_lsp("fill", position).error(2)
    assert f"model.sampler.dg-mini: entropy_bound does not apply to dg-mini, {MASKS}" in message
    user_settings("[model.sampler.dg-mini]\nprompt_attention = 'per_request'\n")
    problem = "does not apply to dg-mini, whose prompt does not see"
    assert f"prompt_attention {problem}" in dg_lsp("fill", position).error(2)
    user_settings("")
    message = dg_lsp("fill", position, "--prompt-attention", "per_request").error(2)
    assert message.startswith(f"--prompt-attention {problem}")


def test_samplers_reach_a_daemon_and_back():
    table = {"t_max": 1, "thinking": True, "prompt_attention": "per_request"}
    settings = parse_settings({"model": {"sampler": {"a": table}}})
    assert parse_settings(json.loads(json.dumps(settings_tree(settings)))) == settings
    assert hash(settings.model_key)


def test_prompt_attention_of_a_command_wins_over_the_users_file(dg_lsp, script, user_settings, position):
    user_settings("[model.sampler.llada]\nprompt_attention = 'exact'\n")
    for options, wanted in ((), "exact"), (("--prompt-attention", "per_request"), "per_request"):
        dg_lsp("fill", position, *options)
        assert script.settings.model.sampler_of("llada").prompt_attention == wanted
    message = dg_lsp("fill", position, "--remote", "http://127.0.0.1:1", "--prompt-attention", "exact").error(2)
    assert "leave --decoder and --prompt-attention out" in message


def test_options_without_effect_are_named(fill):
    effects = [fill(spec, "--top-k", "4").err for spec in (MASK_SPEC, CAUSAL_SPEC, UNIFORM_SPEC)]
    assert ["dg-lsp: --top-k has no effect, because" in err for err in effects] == [True, True, False]
