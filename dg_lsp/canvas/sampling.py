"""The spec of a model with sampler options of the user, each checked against the model's family."""

from dataclasses import fields, replace
from typing import Any

from dg_lsp.canvas.chat import can_think
from dg_lsp.canvas.spec import DecoderName, MaskSampling, ModelSpec, UniformSampling
from dg_lsp.errors import OptionError
from dg_lsp.settings import SamplerOptions

_OF_ALL = ("thinking", "top_k")
_OF_MASKS = ("canvas_length", "max_denoising_steps", "confidence_threshold")


def with_sampler(spec: ModelSpec, options: SamplerOptions) -> ModelSpec:
    """The spec with these options in place of the model's own values.

    Raises:
        OptionError: an option does not apply to the model's family, or has a value that the model does not take.
    """
    values = options.values
    if not values:
        return spec
    for name, value in values.items():
        if reason := _refusal(name, spec):
            raise OptionError(name, f"does not apply to {spec.name}, {reason}: leave it out")
        if problem := _problem(name, value, spec):
            raise OptionError(name, problem)
    sampling = spec.sampling
    if sampling is not None:
        known = {name: value for name, value in values.items() if name in {field.name for field in fields(sampling)}}
        sampling = replace(sampling, **known)
    if isinstance(sampling, UniformSampling):
        if "top_k" in values and not {"top_k_start", "top_k_end"} & values.keys():
            sampling = replace(sampling, top_k_start=0, top_k_end=0)
        if sampling.t_min > sampling.t_max:
            problem = f"{sampling.t_min:g} is above the temperature of the first step, {sampling.t_max:g}: set both"
            raise OptionError("t_min", problem)
        if bool(sampling.top_k_start) != bool(sampling.top_k_end):
            name = "top_k_end" if sampling.top_k_start else "top_k_start"
            raise OptionError(name, "is 0, but the number of tokens changes from one step to the next: set both")
    return replace(
        spec,
        sampling=sampling,
        canvas_length=values.get("canvas_length", spec.canvas_length),
        is_thinking=values.get("thinking", spec.is_thinking),
    )


def decoder_with(options: SamplerOptions, wanted: DecoderName, spec: ModelSpec) -> DecoderName:
    """The decoder of a request with these options: `auto` denoises where the model has a canvas for that.

    Raises:
        OptionError: the decoder does not read one of the options.
    """
    names = [name for name in options.values if name not in _OF_ALL]
    if not names or wanted.needs_final_canvas:
        return wanted
    if wanted is DecoderName.AUTO:
        return DecoderName.DIFFUSION if spec.has_final_canvas else wanted
    if unread := [name for name in names if name != "canvas_length" or not wanted.needs_canvas]:
        raise OptionError(unread[0], f"does not apply to the decoder {wanted.value}: leave one of them out")
    return wanted


def _refusal(name: str, spec: ModelSpec) -> str:
    if name == "thinking":
        return "" if can_think(spec) else "whose chat template has no thinking"
    if name == "prompt_attention":
        return "" if spec.is_bidirectional else "whose prompt does not see the canvas"
    if name in _OF_ALL:  # without a canvas, and with masks, every token is the best one
        return ""
    if spec.sampling is None:
        return "which has no canvas"
    if spec.is_drafter and name != "canvas_length":
        return "whose canvas only drafts"
    if isinstance(spec.sampling, MaskSampling) and name not in _OF_MASKS:
        return "which denoises masks"
    return ""


def _problem(name: str, value: Any, spec: ModelSpec) -> str:
    sampling = spec.sampling
    if name == "confidence_threshold" and isinstance(sampling, MaskSampling) and not 0 < value <= 1:
        return f"is a probability for {spec.name}: set it above 0 and to at most 1"
    if name == "canvas_length" and value > spec.longest_block:
        return f"{value} is more than {spec.name} was trained for; choose at most {spec.longest_block}"
    if name == "canvas_length" and spec.block_length not in (0, value):
        return f"does not apply to {spec.name}, which fills blocks of {spec.block_length} tokens: leave it out"
    return ""
