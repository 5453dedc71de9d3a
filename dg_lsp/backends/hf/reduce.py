"""The head's output to what a sampler needs, and to the next step's conditioning; logits never leave the device.

On a GPU with Triton one fused pass does the same (`fused.py`).
"""

from dataclasses import dataclass

import torch

_BLOCK = 128


@dataclass(frozen=True, slots=True, eq=False)
class Sampled:
    """T positions, on the device."""

    rows: torch.Tensor
    """Shape (4, T), float32: argmax, sampled token, confidence, entropy; one array is one copy to the host. Token ids
    are exact up to 2**24."""
    weights: torch.Tensor
    """Shape (T, vocabulary): the tempered distribution as self-conditioning wants it, in the embedding's type."""


def soft_cap(raw: torch.Tensor, cap: float) -> torch.Tensor:
    """Logits within (-cap, cap), float32, from the head's output."""
    return torch.tanh(raw.to(torch.float32) / cap) * cap


def reduce(
    raw: torch.Tensor, cap: float, banned_ids: torch.Tensor, temperature: torch.Tensor, chances: torch.Tensor
) -> Sampled:
    """What the head says at T positions.

    The order is the reference's: cap, ban, temper; the conditioning is made of logits rounded to the embedding's type.

    Args:
        raw: the head's output, shape (T, vocabulary), in the embedding's type.
        cap: of the logits.
        banned_ids: never predicted, shape (B,).
        temperature: above 0, a number on the device.
        chances: uniform in [0, 1), shape (T,); which token each of them is, is decided by the distribution.
    """
    logits = soft_cap(raw, cap).index_fill_(1, banned_ids, float("-inf")) / temperature
    probabilities = torch.softmax(logits, dim=-1)
    confidence, argmax = probabilities.max(dim=-1)
    entropy = torch.special.entr(probabilities).sum(dim=-1)
    sampled = draw(probabilities, chances)
    rows = torch.stack([argmax.float(), sampled.float(), confidence, entropy])
    weights = torch.softmax(logits.to(raw.dtype), dim=-1, dtype=torch.float32).to(raw.dtype)
    return Sampled(rows, weights)


def draw(probabilities: torch.Tensor, chances: torch.Tensor) -> torch.Tensor:
    """One token a row, by inverting the cumulative sum of (T, vocabulary): first over blocks, then inside one."""
    length, vocab_size = probabilities.shape
    padded = torch.nn.functional.pad(probabilities, (0, -vocab_size % _BLOCK)).view(length, -1, _BLOCK)
    blocks = padded.sum(dim=-1, dtype=torch.float64).cumsum(dim=-1)
    wanted = chances.to(torch.float64)[:, None] * blocks[:, -1:]
    block = torch.searchsorted(blocks, wanted, right=True).clamp_(max=blocks.shape[1] - 1)
    before = torch.where(block > 0, blocks.gather(1, (block - 1).clamp_(min=0)), 0.0)
    inside = padded.gather(1, block[:, :, None].expand(-1, -1, _BLOCK))[:, 0].to(torch.float64)
    within = torch.searchsorted(inside.cumsum(dim=-1), wanted - before, right=True).clamp_(max=_BLOCK - 1)
    found = (block * _BLOCK + within).clamp_(max=vocab_size - 1)
    # rounding can lead to a token of no weight; the most probable one of its row stands in
    return torch.where(probabilities.gather(1, found) > 0, found, probabilities.argmax(dim=-1, keepdim=True))[:, 0]
