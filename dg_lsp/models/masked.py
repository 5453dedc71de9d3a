"""GGUF files of the open masked diffusion models (Dream, LLaDA, RND1, Open-dCoder), which say nothing of themselves.

What a file does say (its mask, whether its logits are shifted, its special tokens) wins over what is known of its
family. Knows no runtime.
"""

from collections.abc import Mapping
from dataclasses import replace

from dg_lsp.canvas.spec import MaskSampling, ModelSpec, SpecialTokens
from dg_lsp.errors import ModelUnsupportedError
from dg_lsp.models.families import Family, for_architecture
from dg_lsp.models.keys import shown_metadata

RELABELLED_FROM = "general.relabelled_from"
"""The architecture of a file that is run as another one."""
_MASK = "tokenizer.ggml.mask_token_id"
_SHIFT = "diffusion.shift_logits"
_START = "tokenizer.ggml.bos_token_id"
_STARTED = "dream"
"""An architecture whose authors begin every text with its first token, whatever the tokenizer's settings say."""


def describe_masked(
    metadata: Mapping[str, str], vocab_size: int, name: str, specials: SpecialTokens
) -> ModelSpec | None:
    """The spec of a masked diffusion model; None for every other model.

    Raises:
        ModelUnsupportedError: the vocabulary has no mask.
    """
    family = _family(metadata, name)
    if family is None or not isinstance(family.sampling, MaskSampling):
        return None
    sampling = _sampling(family.sampling, metadata, vocab_size, name)
    is_special = {sampling.expand_id, sampling.delete_id}
    end_ids = {*specials.end_ids, *(token for token in family.end_ids if token < vocab_size)}
    end_ids -= is_special  # what goes away ends nothing
    shift = metadata.get(_SHIFT)
    return ModelSpec(
        name=name,
        vocab_size=vocab_size,
        sampling=sampling,
        end_ids=tuple(sorted(end_ids)),
        prompt_format=family.prompt_format,
        start_ids=specials.start_ids or _usual_start(family, metadata),
        banned_ids=tuple(sorted({*specials.control_ids, sampling.mask_id} - end_ids - is_special)),
        canvas_lengths=family.canvas_lengths,
        max_prompt_tokens=_prompt_tokens(family, metadata),
        has_causal_head=False,
        is_shifted=family.is_shifted if shift is None else shift == "true",
        is_bidirectional=True,
        template=family.template,
        hole_lengths=family.hole_lengths,
        metadata=shown_metadata(metadata),
    )


def _family(metadata: Mapping[str, str], name: str) -> Family | None:
    """By what the file calls itself, else by what it is called."""
    architecture = metadata.get(RELABELLED_FROM) or metadata.get("general.architecture", "")
    return for_architecture(architecture, f"{metadata.get('general.name', '')} {name}")


def _usual_start(family: Family, metadata: Mapping[str, str]) -> tuple[int, ...]:
    """As in DreamOn's `eval/generator.py`, which fills with Dream-Coder as well."""
    said = metadata.get(_START, "")
    return (int(said),) if family.architecture == _STARTED and said.isascii() and said.isdigit() else ()


def _sampling(usual: MaskSampling, metadata: Mapping[str, str], vocab_size: int, name: str) -> MaskSampling:
    said = metadata.get(_MASK, "")
    mask_id = int(said) if said.isascii() and said.isdigit() else usual.mask_id
    if mask_id >= vocab_size:
        raise ModelUnsupportedError(
            f"model {name}: no mask {mask_id} in a vocabulary of {vocab_size}; convert it again with its own tokenizer"
        )
    can_resize = max(usual.expand_id or 0, usual.delete_id or 0) < vocab_size
    return replace(
        usual,
        mask_id=mask_id,
        expand_id=usual.expand_id if can_resize else None,
        delete_id=usual.delete_id if can_resize else None,
    )


def _prompt_tokens(family: Family, metadata: Mapping[str, str]) -> int:
    """What is recommended, and no more than was trained for."""
    architecture = metadata.get("general.architecture", "")
    trained = metadata.get(f"{architecture}.context_length", "")
    if not (trained.isascii() and trained.isdigit()):
        return family.max_prompt_tokens
    return max(1, min(family.max_prompt_tokens, int(trained) - 2 * family.canvas_lengths[-1]))
