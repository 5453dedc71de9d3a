"""DiffusionGemma's encoder and decoder, computed by transformers' own modules; one denoising step, and its reduction.

The keys and values of prompts are in one growing cache for each slot, without the sliding layers of `DynamicCache`,
which cannot be cropped past their window. `StaticCache` computes wrong logits for this model as soon as the prompt
fills the window (transformers 5.23).

Self-conditioning enters and leaves a step as an embedding of shape (T, hidden); transformers keeps logits instead.
No GPU has run this module.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import DynamicCache

from dg_lsp.diffusion.denoiser import TopK

_SLIDING = "sliding_attention"


class PrefixCache:
    """The prompt of one slot in every layer. Sliding layers keep all of it too, so that it can be cropped anywhere."""

    def __init__(self, text_config: Any) -> None:
        self._config = text_config
        self.layers = DynamicCache()
        """What transformers calls `past_key_values`."""

    @property
    def length(self) -> int:
        """Tokens in the cache."""
        return int(self.layers.get_seq_length())

    def crop(self, length: int) -> None:
        """Removes tokens until `length` are left."""
        self.layers.crop(length - self.length)  # the number of removed tokens is negative

    def states(self, number: int) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Keys and values of a layer, shape (1, heads, N, width), of a sliding layer only its window; None if empty."""
        if not self.length:
            return None
        layer = self.layers.layers[number]
        num_kept = self._num_visible(is_sliding=self._config.layer_types[number] == _SLIDING)
        return layer.keys[:, :, -num_kept:], layer.values[:, :, -num_kept:]

    def mask(self, canvas_numbers: torch.Tensor, *, is_sliding: bool) -> torch.Tensor:
        """Which keys each of T canvas tokens attends to in one kind of layer, shape (1, 1, T, N + T).

        These are the `states` of the prompt, then all tokens of the same canvas, by `canvas_numbers` of shape (T,).
        """
        same_canvas = canvas_numbers[:, None] == canvas_numbers[None, :]
        in_prompt = same_canvas.new_ones((len(same_canvas), self._num_visible(is_sliding=is_sliding)))
        return torch.cat([in_prompt, same_canvas], dim=1)[None, None]

    def _num_visible(self, *, is_sliding: bool) -> int:
        return min(self.length, self._config.sliding_window - 1) if is_sliding else self.length


def prefix_bytes(text_config: Any, num_tokens: int, itemsize: int) -> int:
    """Bytes of the keys and values of a prompt."""
    widths = (2 * layer.num_key_value_heads * layer.head_dim for layer in text_config.per_layer_config)
    return itemsize * num_tokens * sum(widths)


_ENCODER_CHUNK = 2048
"""Prompt tokens of one encoder pass: the attention scores of a long prompt would take gigabytes."""


class StepInputs(NamedTuple):
    """Everything that differs between two steps, on the device. T is the number of canvas tokens."""

    tokens: torch.Tensor  # shape (3, T), int64: ids, positions from the prompt's length on, and numbers of canvases
    conditioning: torch.Tensor  # shape (T, hidden): the first value of the step before; zeros before the first step
    noise: torch.Tensor
    """Shape (T + 1,): random numbers in [0, 1) that decide the samples, then the temperature, above 0."""


def append_canvas(
    prefix: tuple[torch.Tensor, torch.Tensor] | None, keys: torch.Tensor, values: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Replaces the decoder's `append_to_cache`: puts keys and values of a prompt before those of canvases."""
    if prefix is None:
        return keys, values
    return torch.cat([prefix[0], keys], dim=-2), torch.cat([prefix[1], values], dim=-2)


_BLOCK = 128


class ReducedLogits(NamedTuple):
    """Values of T positions, on the device."""

    rows: torch.Tensor
    """Shape (5, T), float32: argmax, sampled token, confidence, entropy, the sampled token's probability. One array is
    one copy to the host; token ids are exact up to 2**24."""
    probabilities: torch.Tensor
    """Shape (T, vocabulary): the tempered distribution in the number format of the embedding."""


def soft_cap(raw: torch.Tensor, cap: float) -> torch.Tensor:
    """Logits in (-cap, cap), float32."""
    return torch.tanh(raw.to(torch.float32) / cap) * cap


def reduce_logits(
    raw: torch.Tensor,
    cap: float,
    banned_ids: torch.Tensor,
    temperature: torch.Tensor,
    uniforms: torch.Tensor,
    top_k: TopK | None = None,
) -> ReducedLogits:
    """Caps, bans and tempers logits of shape (T, vocabulary) in the order of transformers, and samples from the result.

    `banned_ids`, shape (B,), are never predicted; `temperature`, shape (), is above 0; `uniforms`, shape (T,), are
    random numbers in [0, 1) that decide the samples. The `top_k` tokens also are those that are fed back.
    """
    logits = soft_cap(raw, cap).index_fill_(1, banned_ids, float("-inf")) / temperature
    exact = torch.softmax(logits, dim=-1)
    confidence, argmax = exact.max(dim=-1)
    kept = exact
    if top_k is not None:
        best = logits.topk(top_k.size)
        logits = torch.full_like(logits, float("-inf")).scatter(1, best.indices, best.values)
        kept = torch.softmax(logits, dim=-1)
    entropy = torch.special.entr(exact if top_k is not None and top_k.counts_tail else kept).sum(dim=-1)
    sampled = draw(kept, uniforms)
    sampled_confidence = exact.gather(1, sampled[:, None])[:, 0]
    rows = torch.stack([argmax.float(), sampled.float(), confidence, entropy, sampled_confidence])
    # transformers rounds the logits before the softmax
    probabilities = torch.softmax(logits.to(raw.dtype), dim=-1, dtype=torch.float32).to(raw.dtype)
    return ReducedLogits(rows, probabilities)


def draw(probabilities: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """One token for each row of (T, vocabulary): inverts the cumulative sum over blocks, then inside one block."""
    length, vocab_size = probabilities.shape
    blocks = torch.nn.functional.pad(probabilities, (0, -vocab_size % _BLOCK)).view(length, -1, _BLOCK)
    sums = blocks.sum(dim=-1, dtype=torch.float64).cumsum(dim=-1)
    targets = uniforms.to(torch.float64)[:, None] * sums[:, -1:]
    block = torch.searchsorted(sums, targets, right=True).clamp_(max=sums.shape[1] - 1)
    before = torch.where(block > 0, sums.gather(1, (block - 1).clamp_(min=0)), 0.0)
    inside = blocks.gather(1, block[:, :, None].expand(-1, -1, _BLOCK))[:, 0].to(torch.float64)
    offset = torch.searchsorted(inside.cumsum(dim=-1), targets - before, right=True).clamp_(max=_BLOCK - 1)
    tokens = (block * _BLOCK + offset).clamp_(max=vocab_size - 1)
    # rounding can select a token of probability 0; the argmax replaces it
    return torch.where(probabilities.gather(1, tokens) > 0, tokens, probabilities.argmax(dim=-1, keepdim=True))[:, 0]


class DiffusionGemmaNetwork:
    """Owns a loaded `DiffusionGemmaForBlockDiffusion`, and replaces the way its decoder reads the cache."""

    def __init__(self, model: Any) -> None:
        self._model = model.eval()
        self.config = model.config.get_text_config()
        decoder = model.model.decoder
        self._encoder = model.model.encoder.language_model
        self._decoder = decoder
        self._head = model.lm_head
        for layer in decoder.layers:
            layer.self_attn.append_to_cache = append_canvas
        self.embedding: torch.Tensor = decoder.embed_tokens.weight
        """Shape (vocabulary, hidden); also the output head. Gives number format and device of the network."""

    @property
    def size_bytes(self) -> int:
        """Bytes of all weights; shared ones count once."""
        parts = (*self._model.parameters(), *self._model.buffers())
        return sum({part.data_ptr(): part.nbytes for part in parts}.values())

    def encode(self, prefix: PrefixCache, ids: torch.Tensor) -> None:
        """Appends prompt tokens of shape (N,) to a prefix, causally."""
        for chunk in ids.split(_ENCODER_CHUNK):
            self._encoder(input_ids=chunk[None], past_key_values=prefix.layers)

    def step(
        self, inputs: StepInputs, prefix: PrefixCache, banned_ids: torch.Tensor, top_k: TopK | None = None
    ) -> tuple[torch.Tensor, np.ndarray]:
        """The conditioning of the next step, shape (T, hidden), and the awaited `ReducedLogits.rows` of canvases."""
        raw = self._raw_logits(inputs, prefix)
        cap = float(self.config.final_logit_softcapping)
        rows, probabilities = reduce_logits(raw, cap, banned_ids, inputs.noise[-1], inputs.noise[:-1], top_k)
        scale = self._decoder.embed_tokens.embed_scale.to(self.embedding.dtype)
        return torch.matmul(probabilities, self.embedding) * scale, rows.cpu().numpy()

    def _raw_logits(self, inputs: StepInputs, prefix: PrefixCache) -> torch.Tensor:
        """Logits of shape (T, vocabulary) before the soft cap."""
        decoder = self._decoder
        ids, positions, canvas_numbers = inputs.tokens
        hidden = decoder.self_conditioning(decoder.embed_tokens(ids[None]), inputs.conditioning[None])
        kinds = set(self.config.layer_types)
        masks = {kind: prefix.mask(canvas_numbers, is_sliding=kind == _SLIDING) for kind in kinds}
        rotary = {kind: decoder.rotary_emb(hidden, positions[None], kind) for kind in kinds}
        for number, (kind, layer) in enumerate(zip(self.config.layer_types, decoder.layers, strict=True)):
            hidden = layer(
                hidden,
                position_embeddings=rotary[kind],
                attention_mask=masks[kind],
                past_key_values=prefix.states(number),
            )
        raw: torch.Tensor = self._head(decoder.norm(hidden))[0]
        return raw
