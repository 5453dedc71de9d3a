"""What a GGUF file says of itself in its `dg.*` metadata, as a `ModelSpec`.

llama.cpp hands every value over as a string. Nothing is guessed: a model that is asked in the wrong format answers
nonsense, so a key that is missing or odd refuses the file and is named.
"""

from collections.abc import Mapping

from dg_lsp.canvas.spec import CAUSAL_BLOCK, FimTokens, MaskSampling, ModelSpec, PromptFormat, SpecialTokens
from dg_lsp.models.diffusiongemma import describe_diffusiongemma
from dg_lsp.models.keys import Keys, shown_metadata
from dg_lsp.models.masked import describe_masked

CAUSAL_PROMPT = 1024
"""Longest prompt of a causal model: they take far more, but what a keystroke may cost does not."""
UNPACKED = "diffusion-gemma"
"""The architecture of files that have to be repacked before they describe themselves."""


def describe(
    metadata: Mapping[str, str], vocab_size: int, name: str, specials: SpecialTokens | None = None
) -> ModelSpec:
    """The spec of a model from its file's metadata.

    Where its vocabulary's special tokens are given, a file that says nothing of diffusion is a masked diffusion model
    if its architecture and name are known as one's, else a causal model.

    Raises:
        ModelUnsupportedError: a `dg.*` key is missing, odd, or asks for what this version cannot do.
    """
    keys = Keys(metadata, vocab_size, name)
    is_stock = not any(key.startswith("dg.") for key in metadata)
    if is_stock and specials is not None:
        if masked := describe_masked(metadata, vocab_size, name, specials):
            return masked
        if metadata.get("general.architecture") != UNPACKED:
            return _causal(metadata, vocab_size, name, specials)
    if metadata.get("dg.noise") == "uniform":
        return describe_diffusiongemma(metadata, vocab_size, name)
    keys.check_version()
    keys.only("dg.noise", "mask")
    keys.only("dg.prompt_format", PromptFormat.FIM)
    keys.flag_if_there("dg.causal")
    mask_id, end_id = keys.token("dg.mask_token_id"), keys.token("dg.end_token_id")
    fim = FimTokens(
        prefix_id=keys.token("dg.prefix_token_id"),
        suffix_id=keys.token("dg.suffix_token_id"),
        middle_id=keys.token("dg.middle_token_id"),
    )
    named = (mask_id, end_id, fim.prefix_id, fim.suffix_id, fim.middle_id)
    if len(set(named)) != len(named):
        raise keys.refusal("its mask, end and fill-in-the-middle tokens are not all different")
    banned_ids = keys.tokens("dg.banned_token_ids")
    if end_id in banned_ids:
        raise keys.refusal("dg.banned_token_ids bans the end token, so a fill could never end")
    return ModelSpec(
        name=name,
        vocab_size=vocab_size,
        sampling=MaskSampling(
            mask_id=mask_id,
            confidence_threshold=keys.share("dg.confidence_threshold"),
            max_denoising_steps=keys.count("dg.max_denoising_steps"),
        ),
        end_ids=(end_id,),
        prompt_format=PromptFormat.FIM,
        fim=fim,
        # a mask that is predicted would stay a mask for ever, whatever the file says of it
        banned_ids=tuple(sorted({*banned_ids, mask_id})),
        canvas_lengths=keys.canvas_lengths("dg.canvas_lengths"),
        max_prompt_tokens=keys.count("dg.max_prompt_tokens"),
        has_causal_head=metadata.get("dg.causal") == "true",
        echo_match=keys.echo_match(),
        expectations=keys.expectations(),
        metadata=shown_metadata(metadata),
    )


def _causal(metadata: Mapping[str, str], vocab_size: int, name: str, specials: SpecialTokens) -> ModelSpec:
    """Any language model: decoded token by token, in the middle where its vocabulary has the sentinels for it."""
    architecture = metadata.get("general.architecture", "")
    trained = metadata.get(f"{architecture}.context_length", "")
    room = int(trained) - 2 * CAUSAL_BLOCK if trained.isascii() and trained.isdigit() else CAUSAL_PROMPT
    return ModelSpec(
        name=name,
        vocab_size=vocab_size,
        sampling=None,
        end_ids=specials.end_ids,
        prompt_format=PromptFormat.FIM if specials.fim else PromptFormat.PREFIX,
        fim=specials.fim,
        start_ids=specials.start_ids,
        file_separator_id=specials.file_separator_id,
        banned_ids=tuple(sorted({*specials.control_ids} - {*specials.end_ids})),
        canvas_lengths=(),
        max_prompt_tokens=max(1, min(room, CAUSAL_PROMPT)),
        metadata=shown_metadata(metadata),
    )
