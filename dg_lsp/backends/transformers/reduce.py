"""Reduces logits to the values that a sampler needs, and to the probabilities of the next step's self-conditioning."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

_BLOCK = 128


@dataclass(frozen=True, slots=True, eq=False)
class ReducedLogits:
    """Values of T positions, on the device."""

    rows: torch.Tensor
    """Shape (4, T), float32: argmax, sampled token, confidence, entropy. One array is one copy to the host; token ids
    are exact up to 2**24."""
    probabilities: torch.Tensor
    """Shape (T, vocabulary): the tempered distribution in the number format of the embedding."""


Reduce = Callable[[torch.Tensor, float, torch.Tensor, torch.Tensor, torch.Tensor], ReducedLogits]
"""The signature of `reduce_logits`."""


def soft_cap(raw: torch.Tensor, cap: float) -> torch.Tensor:
    """Logits in (-cap, cap), float32."""
    return torch.tanh(raw.to(torch.float32) / cap) * cap


def reduce_logits(
    raw: torch.Tensor, cap: float, banned_ids: torch.Tensor, temperature: torch.Tensor, uniforms: torch.Tensor
) -> ReducedLogits:
    """Caps, bans and tempers logits in the order of transformers, and samples from the result.

    Args:
        raw: output of the head, shape (T, vocabulary), in the number format of the embedding.
        cap: bound of the logits.
        banned_ids: tokens that are never predicted, shape (B,).
        temperature: above 0, shape ().
        uniforms: random numbers in [0, 1), shape (T,); with the distribution they decide the samples.
    """
    logits = soft_cap(raw, cap).index_fill_(1, banned_ids, float("-inf")) / temperature
    exact = torch.softmax(logits, dim=-1)
    confidence, argmax = exact.max(dim=-1)
    entropy = torch.special.entr(exact).sum(dim=-1)
    rows = torch.stack([argmax.float(), draw(exact, uniforms).float(), confidence, entropy])
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
