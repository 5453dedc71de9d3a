"""Cross-entropy over the vocabulary without keeping the logits in float32. Knows states and targets, no network.

A compiled `cross_entropy(linear(...))` spends most of a CPU's training step on passes over float32 logits that fit no
cache. Here logits stay in the type of the products, a slice that fits the second-level cache is turned into
probabilities at a time, and the gradient of the loss by the logits takes their place, ready for the backward pass.
"""

from typing import Any

import torch
from torch import Tensor

SLICE = 32  # targets whose float32 probabilities fit a core's cache: 32 * 8192 * 4 bytes = 1 MiB
CHUNK = 1024  # targets of one product with the vocabulary
TINY = torch.finfo(torch.float32).tiny  # a probability that is rounded to zero costs 87 nats


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, embedding: Tensor, targets: Tensor) -> Tensor:
        losses = torch.empty(len(targets), dtype=torch.float32, device=states.device)
        scratch = states.new_empty((SLICE, len(embedding)), dtype=torch.float32)
        gradients = []
        for at in range(0, len(targets), CHUNK):
            logits = states[at : at + CHUNK] @ embedding.t()
            for low in range(0, len(logits), SLICE):
                part = logits[low : low + SLICE]
                want = targets[at + low : at + low + len(part), None]
                probabilities = scratch[: len(part)]
                torch.softmax(probabilities.copy_(part), -1, out=probabilities)
                losses[at + low : at + low + len(part)] = -probabilities.gather(1, want)[:, 0].clamp(min=TINY).log()
                probabilities.scatter_add_(1, want, probabilities.new_full(want.shape, -1.0))
                part.copy_(probabilities)
            gradients.append(logits)
        ctx.save_for_backward(states, embedding, *gradients)
        return losses

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, None]:
        states, embedding, *gradients = ctx.saved_tensors
        of_states, of_embedding = torch.empty_like(states), torch.zeros_like(embedding, dtype=torch.float32)
        for i, gradient in enumerate(gradients):
            chunk = slice(i * CHUNK, i * CHUNK + len(gradient))
            # the weight of a target scales the narrow side of both products, not the wide gradient
            weight = upstream[chunk, None].to(states.dtype)
            of_states[chunk] = (gradient @ embedding) * weight
            of_embedding += gradient.t() @ (states[chunk] * weight)
        return of_states, of_embedding.to(embedding.dtype), None


def linear_cross_entropy(states: Tensor, embedding: Tensor, targets: Tensor) -> Tensor:
    """Nats of every target (N,), given states (N, width) and the embedding (vocabulary, width).

    Products are made in the type that autocast asks for, like those of a linear layer.
    """
    kind = states.device.type
    if torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
        states, embedding = states.to(dtype), embedding.to(dtype)
    with torch.autocast(kind, enabled=False):
        losses: Tensor = _LinearCrossEntropy.apply(states, embedding, targets)
    return losses
