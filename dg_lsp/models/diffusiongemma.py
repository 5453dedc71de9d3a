"""What a repacked DiffusionGemma says of itself: uniform noise, a chat template, a side file for self-conditioning.

The weights are an ordinary `gemma4` GGUF; what makes them DiffusionGemma stands in `dg.*` keys that `dg-lsp models
repack` writes. As in `description`, nothing is guessed.
"""

import re
from collections.abc import Mapping
from dataclasses import replace

from dg_lsp.canvas.spec import ModelSpec, PromptFormat, SideFile, UniformSampling
from dg_lsp.models.keys import Keys, shown_metadata

ADVICE = "repack it again with dg-lsp models repack"

_SHA256 = re.compile(r"[0-9a-f]{64}")


def describe_diffusiongemma(metadata: Mapping[str, str], vocab_size: int, name: str) -> ModelSpec:
    """The spec of a file whose noise is uniform.

    Raises:
        ModelUnsupportedError: a `dg.*` key is missing, odd, or asks for what this version cannot do.
    """
    spec = describe_uniform(metadata, vocab_size, name)
    return replace(spec, self_conditioning=_side_file(Keys(metadata, vocab_size, name, ADVICE)))


def describe_uniform(metadata: Mapping[str, str], vocab_size: int, name: str) -> ModelSpec:
    """The same without a side file: where the weights feed back by themselves.

    Raises:
        ModelUnsupportedError: as `describe_diffusiongemma`.
    """
    keys = Keys(metadata, vocab_size, name, ADVICE)
    keys.check_version()
    keys.only("dg.noise", "uniform")
    keys.only("dg.prompt_format", PromptFormat.INSTRUCT)
    end_ids, banned_ids = keys.tokens("dg.end_token_ids"), keys.tokens("dg.banned_token_ids")
    if not end_ids or {*end_ids} & {*banned_ids}:
        raise keys.refusal("dg.end_token_ids names no token, or one that dg.banned_token_ids bans")
    return ModelSpec(
        name=name,
        vocab_size=vocab_size,
        sampling=_sampling(keys),
        end_ids=end_ids,
        prompt_format=PromptFormat.INSTRUCT,
        banned_ids=banned_ids,
        canvas_lengths=keys.canvas_lengths("dg.canvas_lengths"),
        max_prompt_tokens=keys.count("dg.max_prompt_tokens"),
        # the encoder that reads the prompt is causal, but was never asked what comes next
        has_causal_head=False,
        template=keys.text("dg.template"),
        metadata=shown_metadata(metadata),
    )


def _sampling(keys: Keys) -> UniformSampling:
    t_max, t_min = keys.positive("dg.t_max"), keys.positive("dg.t_min")
    if t_min > t_max:
        raise keys.odd("dg.t_min", f"at most dg.t_max, {t_max:g}")
    return UniformSampling(
        entropy_bound=keys.positive("dg.entropy_bound"),
        t_max=t_max,
        t_min=t_min,
        max_denoising_steps=keys.count("dg.max_denoising_steps"),
        stability_threshold=keys.number("dg.stability_threshold"),
        confidence_threshold=keys.positive("dg.stop_confidence"),
    )


def _side_file(keys: Keys) -> SideFile:
    filename, sha256 = keys.text("dg.self_conditioning"), keys.text("dg.self_conditioning.sha256")
    # it lies beside the model; a path that leads elsewhere is not ours
    if not filename or {*filename} & {"/", "\\", "\0"} or filename in (".", ".."):
        raise keys.odd("dg.self_conditioning", "the name of a file beside the model")
    if not _SHA256.fullmatch(sha256):
        raise keys.odd("dg.self_conditioning.sha256", "64 hexadecimal digits")
    return SideFile(filename, sha256)
