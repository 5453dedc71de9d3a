"""The loss: next-token prediction on clean tokens plus denoising of canvases."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dg_lsp.training.network import DiffusionNetwork, Mask, block_mask, dense_mask
from dg_lsp.training.rows import CANVAS_FIELDS, RowConfig, TrainingBatch, open_stream
from dg_lsp.training.tokenizer import MASK

FULL, LEFT, RANDOM = range(3)
"""Noise kinds of a canvas: all masks, masks after a known left part, random masks."""
VALIDATION_SEED = 7
GPU_CHUNK = 16_384  # targets of one product with the vocabulary
CPU_CHUNK = 1024
CPU_SLICE = 32  # targets whose float32 probabilities fit the cache of a core: 32 * 8192 * 4 bytes = 1 MiB
TINY = torch.finfo(torch.float32).tiny  # a probability that underflows to zero costs 87 nats


@dataclass(frozen=True, slots=True)
class ObjectiveConfig:
    """Masks and weights of the denoising loss."""

    fill_weight: float = 0.1  # of the end tokens that fill a canvas after the first one
    leftmost_weight: float = 4.0  # added to the leftmost mask of a canvas, halved for each mask after it
    full_share: float = 0.15  # share of canvases that are all masks
    left_share: float = 0.30  # share of canvases with a known left part, as in left-to-right decoding


def draw_masks(
    length: Tensor, canvas_length: int, config: ObjectiveConfig, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Which positions are masked, (R, C, L) bool, and the noise kind of each canvas, (R, C).

    length (R, C): positions in use. Random masks have a rate of U(0, 1). A canvas in use has at least one mask.
    """
    device, shape = length.device, tuple(length.shape)
    which = torch.rand(shape, device=device, generator=generator)
    rate = torch.rand(shape, device=device, generator=generator)
    noise = torch.rand((*shape, canvas_length), device=device, generator=generator)
    at = torch.arange(canvas_length, device=device).expand(*shape, canvas_length)
    used = at < length[..., None]
    is_full, is_left = which < config.full_share, which < config.full_share + config.left_share
    kind = torch.where(is_full, FULL, torch.where(is_left, LEFT, RANDOM))
    is_known_left = at < (rate * length).floor()[..., None]
    masked = torch.where((kind == LEFT)[..., None], ~is_known_left, noise < rate[..., None])
    masked = masked | (kind == FULL)[..., None]
    lowest = noise.masked_fill(~used, 2.0).argmin(-1, keepdim=True)
    at_least_one = (at == lowest) & (kind == RANDOM)[..., None]
    return (masked | at_least_one) & used, kind


class _LinearCrossEntropy(torch.autograd.Function):
    """Cross-entropy without float32 logits: they stay in the type of the matrix product.

    Slices that fit a core's cache become probabilities, then the gradient by the logits, ready for the backward pass.
    """

    @staticmethod
    def forward(ctx: Any, states: Tensor, embedding: Tensor, targets: Tensor) -> Tensor:
        losses = torch.empty(len(targets), dtype=torch.float32, device=states.device)
        scratch = states.new_empty((CPU_SLICE, len(embedding)), dtype=torch.float32)
        gradients = []
        for at in range(0, len(targets), CPU_CHUNK):
            logits = states[at : at + CPU_CHUNK] @ embedding.t()
            for low in range(0, len(logits), CPU_SLICE):
                part = logits[low : low + CPU_SLICE]
                target = targets[at + low : at + low + len(part), None]
                probabilities = scratch[: len(part)]
                torch.softmax(probabilities.copy_(part), -1, out=probabilities)
                losses[at + low : at + low + len(part)] = -probabilities.gather(1, target)[:, 0].clamp(min=TINY).log()
                probabilities.scatter_add_(1, target, probabilities.new_full(target.shape, -1.0))
                part.copy_(probabilities)
            gradients.append(logits)
        ctx.save_for_backward(states, embedding, *gradients)
        return losses

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, None]:
        states, embedding, *gradients = ctx.saved_tensors
        of_states, of_embedding = torch.empty_like(states), torch.zeros_like(embedding, dtype=torch.float32)
        for i, gradient in enumerate(gradients):
            chunk = slice(i * CPU_CHUNK, i * CPU_CHUNK + len(gradient))
            # the weight of a target scales the narrow side of both products, not the wide gradient
            weight = upstream[chunk, None].to(states.dtype)
            of_states[chunk] = (gradient @ embedding) * weight
            of_embedding += gradient.t() @ (states[chunk] * weight)
        return of_states, of_embedding.to(embedding.dtype), None


def linear_cross_entropy(states: Tensor, embedding: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy in nats of each target (N,), given states (N, width) and the embedding (vocabulary, width).

    For a CPU: 8 to 15 % faster than compiled `cross_entropy(linear(...))` on 3,072 targets (docs/log.md).
    """
    kind = states.device.type
    if torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
        states, embedding = states.to(dtype), embedding.to(dtype)
    with torch.autocast(kind, enabled=False):
        losses: Tensor = _LinearCrossEntropy.apply(states, embedding, targets)
    return losses


def _gpu_cross_entropy(states: Tensor, embedding: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(states, embedding).float(), targets, ignore_index=-100, reduction="none")


@dataclass(frozen=True, slots=True)
class Losses:
    """Nats per target. next_*: one value per predicted clean token; masked_*: one per masked position."""

    next: Tensor
    next_in_middle: Tensor
    masked: Tensor
    masked_is_fill: Tensor
    masked_in_middle: Tensor
    masked_noise: Tensor  # noise kind of its canvas
    masked_rank: Tensor  # masks before it in its canvas; decoding takes the leftmost mask first

    def total(self, config: ObjectiveConfig) -> Tensor:
        """The mean next-token loss plus the weighted mean denoising loss."""
        weight = torch.where(
            self.masked_is_fill, config.fill_weight, 1.0 + config.leftmost_weight * 0.5**self.masked_rank
        )
        return self.next.mean() + (self.masked * weight).sum() / weight.sum().clamp(min=1.0)

    def summary(self) -> Tensor:
        """Mean next-token, content and fill losses (3,), NaN where a batch has none; stays on the device."""
        parts = (self.next, self.masked[~self.masked_is_fill], self.masked[self.masked_is_fill])
        return torch.stack([part.detach().float().mean() for part in parts])


def to_tensors(batch: TrainingBatch, device: torch.device) -> dict[str, Tensor]:
    """The arrays of a batch on the device."""
    is_cuda = device.type == "cuda"
    found = {f.name: torch.from_numpy(getattr(batch, f.name)) for f in fields(batch)}
    return {n: (t.pin_memory() if is_cuda else t).to(device, non_blocking=is_cuda) for n, t in found.items()}


def without_canvases(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """The clean tokens of a batch alone."""
    return {name: tensor[:, :0] if name in CANVAS_FIELDS else tensor for name, tensor in batch.items()}


class Objective:
    """The losses of a network."""

    def __init__(self, network: DiffusionNetwork, config: ObjectiveConfig, *, compiled: bool) -> None:
        self.network, self.config = network, config
        self._is_cuda = next(network.parameters()).device.type == "cuda"
        self._gpu_loss = torch.compile(_gpu_cross_entropy) if compiled else _gpu_cross_entropy

    def losses(self, b: dict[str, Tensor], generator: torch.Generator) -> Losses:
        """Losses of a batch with newly drawn masks."""
        rows, num_clean = b["tokens"].shape
        canvas_length = b["target"].shape[2]
        masked, noise = draw_masks(b["length"], canvas_length, self.config, generator)
        noisy = torch.where(masked, MASK, b["target"]).view(rows, -1)
        at = torch.arange(canvas_length, device=masked.device)
        noisy_position = ((b["start"] - b["context_start"])[:, :, None] + at).view(rows, -1)
        ids = torch.cat([b["tokens"], noisy], 1)
        position = torch.cat([b["position"], noisy_position], 1)
        h = self.network.hidden(ids, position, self._attention_mask(b))
        follows = (b["document"][:, 1:] == b["document"][:, :-1]) & (b["document"][:, 1:] >= 0)
        rank = masked.cumsum(-1)[masked] - 1
        is_fill = (at >= b["num_content"][:, :, None])[masked]
        in_middle, noise = (x[..., None].expand_as(masked)[masked] for x in (b["is_middle"], noise))
        masked = masked.view(rows, -1)
        targets = torch.cat([b["tokens"][:, 1:][follows], b["target"].view(rows, -1)[masked]]).long()
        states = torch.cat([h[:, : num_clean - 1][follows], h[:, num_clean:][masked]])
        loss, num = self._cross_entropy(states, targets), int(follows.sum())
        return Losses(loss[:num], b["in_middle"][:, 1:][follows], loss[num:], is_fill, in_middle, noise, rank)

    def _attention_mask(self, b: dict[str, Tensor]) -> Mask:
        make_mask = block_mask if self._is_cuda else dense_mask
        return make_mask(b["document"], b["start"], b["context_start"], b["length"], b["target"].shape[2])

    def _cross_entropy(self, states: Tensor, targets: Tensor) -> Tensor:
        weight = self.network.embedding.weight
        if not self._is_cuda:
            return linear_cross_entropy(states, weight, targets)
        # padded to whole chunks so that one compiled graph serves all batches
        num = len(targets)
        pad = -num % GPU_CHUNK
        states, targets = F.pad(states, (0, 0, 0, pad)), F.pad(targets, (0, pad), value=-100)
        parts = zip(states.split(GPU_CHUNK), targets.split(GPU_CHUNK), strict=True)
        return torch.cat([self._gpu_loss(h, weight, y) for h, y in parts])[:num]


def validation_batches(root: Path, config: RowConfig, device: torch.device, num: int) -> list[dict[str, Tensor]]:
    """Batches of the validation split, always the same."""
    stream = open_stream(root, "val", config, VALIDATION_SEED)
    return [to_tensors(stream.batch(), device) for _ in range(num)]


@torch.no_grad()
def validate(objective: Objective, batches: list[dict[str, Tensor]]) -> dict[str, float]:
    """Mean losses in nats by kind of target and noise. The masks are always the same."""
    device = batches[0]["tokens"].device
    generator = torch.Generator(device).manual_seed(VALIDATION_SEED)
    found: dict[str, list[Tensor]] = {}
    for batch in batches:
        with torch.autocast(device.type, torch.bfloat16):
            x = objective.losses(batch, generator)
        is_content = x.masked_in_middle & ~x.masked_is_fill
        parts = {
            "next_token_context": x.next[~x.next_in_middle],
            "next_token_middle": x.next[x.next_in_middle],
            "masked_text": x.masked[~x.masked_in_middle],
            "masked_middle": x.masked[is_content],
            "masked_middle_leftmost": x.masked[is_content & (x.masked_rank == 0)],
            "masked_middle_full": x.masked[is_content & (x.masked_noise == FULL)],
            "masked_middle_left": x.masked[is_content & (x.masked_noise == LEFT)],
            "masked_middle_random": x.masked[is_content & (x.masked_noise == RANDOM)],
            "fill": x.masked[x.masked_is_fill],
        }
        for name, loss in parts.items():
            found.setdefault(name, []).append(loss.float())
    return {name: round(torch.cat(parts).mean().item(), 4) for name, parts in found.items()}
