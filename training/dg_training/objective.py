"""The loss: next-token prediction on clean tokens plus denoising of canvases."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor
from torch.nn import functional as F

from dg_training.network import DiffusionNetwork, block_mask, dense_mask
from dg_training.rows import CANVAS_FIELDS, RowSource, TrainingBatch
from dg_training.tokenizer import MASK

FULL, LEFT, RANDOM = range(3)
"""Noise kinds of a canvas: all masks, masks after a known left part, random masks."""
VALIDATION_SEED = 7
GPU_CHUNK, CPU_CHUNK = 16_384, 512  # targets of one product with the vocabulary
FILL_WEIGHT = 0.1  # of the end tokens that fill a canvas after the first one
LEFTMOST_WEIGHT = 4.0  # added to the leftmost mask of a canvas, halved for each mask after it
FULL_SHARE = 0.15  # of canvases that are all masks
LEFT_SHARE = 0.30  # of canvases with a known left part, as in left-to-right decoding
MIDDLE_WEIGHT = 4.0  # of a middle's tokens in the next-token loss; the other tokens have 1


def draw_masks(length: Tensor, canvas_length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Which positions are masked, (R, C, L) bool, and the noise kind of each canvas, (R, C).

    length (R, C): positions in use. Random masks have a rate of U(0, 1). A canvas in use has at least one mask.
    """
    device = length.device
    shape = tuple(length.shape)
    shapes = (shape, shape, (*shape, canvas_length))
    which, rate, noise = (torch.rand(shape, device=device, generator=generator) for shape in shapes)
    at = torch.arange(canvas_length, device=device).expand(*shape, canvas_length)
    used = at < length[..., None]
    kind = torch.where(which < FULL_SHARE, FULL, torch.where(which < FULL_SHARE + LEFT_SHARE, LEFT, RANDOM))
    is_known_left = at < (rate * length).floor()[..., None]
    masked = torch.where((kind == LEFT)[..., None], ~is_known_left, noise < rate[..., None])
    masked = masked | (kind == FULL)[..., None]
    lowest = noise.masked_fill(~used, 2.0).argmin(-1, keepdim=True)
    at_least_one = (at == lowest) & (kind == RANDOM)[..., None]
    return (masked | at_least_one) & used, kind


def cross_entropy(states: Tensor, embedding: Tensor, targets: Tensor) -> Tensor:
    """Nats of each target (N,), given states (N, width) and the embedding (vocabulary, width); 0 for target -100."""
    return F.cross_entropy(F.linear(states, embedding).float(), targets, ignore_index=-100, reduction="none")


@dataclass(frozen=True, slots=True)
class Losses:
    """Nats per target. next_*: one value per predicted clean token; masked_*: one per masked position."""

    next: Tensor
    next_in_middle: Tensor
    masked: Tensor
    masked_is_fill: Tensor
    masked_in_middle: Tensor
    masked_rank: Tensor  # masks before it in its canvas; decoding takes the leftmost mask first

    def total(self) -> Tensor:
        """The weighted mean next-token loss plus the weighted mean denoising loss."""
        next_weight = torch.where(self.next_in_middle, MIDDLE_WEIGHT, 1.0)
        next_loss = (self.next * next_weight).sum() / next_weight.sum().clamp(min=1.0)
        weight = torch.where(self.masked_is_fill, FILL_WEIGHT, 1.0 + LEFTMOST_WEIGHT * 0.5**self.masked_rank)
        return next_loss + (self.masked * weight).sum() / weight.sum().clamp(min=1.0)

    def by_target(self) -> dict[str, Tensor]:
        """The losses of each kind of target, without gradients; they stay on the device."""
        content = self.masked_in_middle & ~self.masked_is_fill
        parts = {
            "next_token_context": self.next[~self.next_in_middle],
            "next_token_middle": self.next[self.next_in_middle],
            "masked_text": self.masked[~self.masked_in_middle],
            "masked_middle": self.masked[content],
            "masked_middle_leftmost": self.masked[content & (self.masked_rank == 0)],
            "fill": self.masked[self.masked_is_fill],
        }
        return {name: losses.detach().float() for name, losses in parts.items()}


def mean_losses(batches: Sequence[Mapping[str, Tensor]]) -> dict[str, float]:
    """Mean nats by kind of target, for those that occur in the batches."""
    joined = {name: torch.cat([batch[name] for batch in batches]) for name in batches[0]}
    return {name: round(losses.mean().item(), 4) for name, losses in joined.items() if len(losses)}


def to_tensors(batch: TrainingBatch, device: torch.device) -> dict[str, Tensor]:
    """The arrays of a batch on the device."""
    is_cuda = device.type == "cuda"
    tensors = {f.name: torch.from_numpy(getattr(batch, f.name)) for f in fields(batch)}
    return {n: (t.pin_memory() if is_cuda else t).to(device, non_blocking=is_cuda) for n, t in tensors.items()}


def without_canvases(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """The clean tokens of a batch alone."""
    return {name: tensor[:, :0] if name in CANVAS_FIELDS else tensor for name, tensor in batch.items()}


class Objective:
    """The losses of a network.

    A position predicts the next token, as in causal models: the first position of a canvas is predicted by the last
    clean token before it, which sees no canvas.
    """

    def __init__(self, network: DiffusionNetwork) -> None:
        self.network = network
        self.is_cuda = next(network.parameters()).device.type == "cuda"
        self._loss = torch.compile(cross_entropy) if self.is_cuda else cross_entropy

    def losses(self, b: dict[str, Tensor], generator: torch.Generator) -> Losses:
        """Losses of a batch with newly drawn masks."""
        rows, num_clean = b["tokens"].shape
        canvas_length = b["target"].shape[2]
        masked, _ = draw_masks(b["length"], canvas_length, generator)
        noisy = torch.where(masked, MASK, b["target"]).view(rows, -1)
        at = torch.arange(canvas_length, device=masked.device)
        noisy_position = ((b["start"] - b["context_start"])[:, :, None] + at).view(rows, -1)
        ids = torch.cat([b["tokens"], noisy], 1)
        position = torch.cat([b["position"], noisy_position], 1)
        make_mask = block_mask if self.is_cuda else dense_mask
        mask = make_mask(b["document"], b["start"], b["context_start"], b["length"], canvas_length)
        h = self.network.hidden(ids, position, mask)
        follows = (b["document"][:, 1:] == b["document"][:, :-1]) & (b["document"][:, 1:] >= 0)
        rank = masked.cumsum(-1)[masked] - 1
        is_fill = (at >= b["num_content"][:, :, None])[masked]
        in_middle = b["is_middle"][..., None].expand_as(masked)[masked]
        masked = masked.view(rows, -1)
        targets = torch.cat([b["tokens"][:, 1:][follows], b["target"].view(rows, -1)[masked]]).long()
        states = torch.cat([h[:, : num_clean - 1][follows], _shifted(h, b["start"], canvas_length)[masked]])
        loss = self._cross_entropy(states, targets)
        num = int(follows.sum())
        return Losses(loss[:num], b["in_middle"][:, 1:][follows], loss[num:], is_fill, in_middle, rank)

    def _cross_entropy(self, states: Tensor, targets: Tensor) -> Tensor:
        """In chunks of one size, so that one compiled graph serves all batches."""
        num = len(targets)
        chunk = GPU_CHUNK if self.is_cuda else CPU_CHUNK
        pad = -num % chunk
        states = F.pad(states, (0, 0, 0, pad))
        targets = F.pad(targets, (0, pad), value=-100)
        weight = self.network.output_weight
        parts = zip(states.split(chunk), targets.split(chunk), strict=True)
        return torch.cat([self._loss(h, weight, y) for h, y in parts])[:num]


def _shifted(h: Tensor, start: Tensor, canvas_length: int) -> Tensor:
    """For each canvas position the state before it, (R, C * L, width); h (R, T + C * L, width), start (R, C)."""
    rows, num_canvases = start.shape
    width = h.shape[2]
    canvases = h[:, h.shape[1] - num_canvases * canvas_length :].view(rows, num_canvases, canvas_length, width)
    before = h.gather(1, (start - 1).clamp(min=0)[..., None].expand(-1, -1, width).long())
    return torch.cat([before[:, :, None], canvases[:, :, :-1]], 2).view(rows, num_canvases * canvas_length, width)


def validation_batches(source: RowSource, device: torch.device, num: int) -> list[dict[str, Tensor]]:
    """Batches of the validation split, always the same."""
    stream = source.stream("val", VALIDATION_SEED)
    return [to_tensors(stream.batch(), device) for _ in range(num)]


def validate(objective: Objective, batches: list[dict[str, Tensor]]) -> dict[str, float]:
    """Mean losses in nats by kind of target. The masks are always the same.

    On a GPU gradients stay on: without them every block would be compiled a second time, which takes longer than a
    validation.
    """
    device = batches[0]["tokens"].device
    generator = torch.Generator(device).manual_seed(VALIDATION_SEED)
    with torch.set_grad_enabled(objective.is_cuda):
        return mean_losses([objective.losses(batch, generator).by_target() for batch in batches])
