"""DiffusionGemma's two halves as the denoiser uses them: a causal encoder of prompts, a decoder of canvases.

transformers' own modules do all of the computing, in transformers' own order; what differs is where keys lie
(`Stage`), and that self-conditioning goes in and out as an embedding instead of the logits that it is made of.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from dg_lsp.backends.hf import attention
from dg_lsp.backends.hf.prefix import PrefixCache
from dg_lsp.backends.hf.stage import Stage

_ENCODED_AT_ONCE = 2048
"""Prompt tokens of one pass: scores of all of a long prompt at once would be gigabytes."""


@dataclass(frozen=True, slots=True, eq=False)
class CanvasTokens:
    """T tokens of one or several canvases of one pass, on the device."""

    ids: torch.Tensor
    """Shape (T,)."""
    positions: torch.Tensor
    """Shape (T,): the prompt's length, and counted on in each canvas."""
    canvas_numbers: torch.Tensor
    """Shape (T,)."""
    length: torch.Tensor
    """Tokens of the prompt, a number."""
    conditioning: torch.Tensor
    """Shape (T, hidden): the mean embedding of what the last step predicted; zeros before the first."""


class Network:
    """A loaded `DiffusionGemmaForBlockDiffusion`, which it takes over: its attention is replaced."""

    def __init__(self, model: Any) -> None:
        self._model = model.eval()
        self.config = model.config.get_text_config()
        self.config._attn_implementation = attention.NAME  # noqa: SLF001  (its setter refuses names it does not list)
        decoder = model.model.decoder
        self._encoder, self._decoder, self._head = model.model.encoder.language_model, decoder, model.lm_head
        for number, layer in enumerate(decoder.layers):
            layer.self_attn.append_to_cache = partial(_append, number)
        self.embedding: torch.Tensor = decoder.embed_tokens.weight
        """Shape (vocabulary, hidden); also the output head, and what type and device are those of."""

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding."""
        return int(self.embedding.shape[0])

    @property
    def size_bytes(self) -> int:
        """Bytes of all weights."""
        # the head is the embedding again: what is there twice by name is counted once
        storages = {part.data_ptr(): part.nbytes for part in (*self._model.parameters(), *self._model.buffers())}
        return sum(storages.values())

    @property
    def cap(self) -> float:
        """What logits are soft-capped to."""
        return float(self.config.final_logit_softcapping)

    @property
    def embedding_length(self) -> int:
        """Numbers of a token's embedding."""
        return int(self.embedding.shape[1])

    def encode(self, prefix: PrefixCache, ids: torch.Tensor) -> None:
        """Appends prompt tokens of shape (N,) to a prefix, causally."""
        for part in ids.split(_ENCODED_AT_ONCE):
            self._encoder(input_ids=part[None], past_key_values=prefix.layers)

    def head(self, tokens: CanvasTokens, stage: Stage, capacity: int) -> torch.Tensor:
        """The head's output of shape (T, vocabulary), before its cap; `capacity` is at least the prompt's length."""
        decoder = self._decoder
        hidden = decoder.self_conditioning(decoder.embed_tokens(tokens.ids[None]), tokens.conditioning[None])
        positions = tokens.positions[None]
        rotary = {kind: decoder.rotary_emb(hidden, positions, kind) for kind in sorted(set(self.config.layer_types))}
        masks = stage.masks(tokens.canvas_numbers, tokens.length, capacity)
        for kind, layer in zip(self.config.layer_types, decoder.layers, strict=True):
            hidden = layer(
                hidden,
                position_embeddings=rotary[kind],
                attention_mask=masks[kind],
                position_ids=positions,
                past_key_values=(stage, capacity),
            )
        raw: torch.Tensor = self._head(decoder.norm(hidden))[0]
        return raw

    def soft_embedding(self, weights: torch.Tensor) -> torch.Tensor:
        """The mean embedding under probabilities of shape (T, vocabulary): the next step's conditioning."""
        scale = self._decoder.embed_tokens.embed_scale.to(self.embedding.dtype)
        return torch.matmul(weights, self.embedding) * scale


def _append(
    number: int, seen: tuple[Stage, int], keys: torch.Tensor, values: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """In place of transformers' own, which copies all of the prompt's keys at every step."""
    stage, capacity = seen
    return stage.append(number, capacity, keys, values)
