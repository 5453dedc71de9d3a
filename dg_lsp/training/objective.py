"""What is minimised: next-token loss on the clean stream plus denoising loss on the canvases. Knows no optimizer."""

from dataclasses import dataclass, fields
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from dg_lsp.training.attention import Mask, visible
from dg_lsp.training.blocks import block_mask
from dg_lsp.training.config import TrainConfig
from dg_lsp.training.feed import open_rows
from dg_lsp.training.network import Network
from dg_lsp.training.noise import draw_hidden
from dg_lsp.training.rows import Batch
from dg_lsp.training.vocabulary import MASK

VALIDATION_SEED = 7


@dataclass(frozen=True, slots=True)
class Losses:
    """Nats per target, with what the target is. next_*: (num_next,); slot_*: (num_hidden,)."""

    next: Tensor
    next_in_middle: Tensor
    slot: Tensor
    slot_is_fill: Tensor
    slot_in_middle: Tensor
    slot_kind: Tensor
    slot_rank: Tensor  # hidden slots before this one in its canvas: decoding takes the leftmost first

    def total(self, fill_weight: float, lead_weight: float) -> Tensor:
        """What is minimised: mean next-token loss plus weighted mean denoising loss.

        The easy fill weighs less; the leftmost hidden slots, whose predictions are taken first, weigh more.
        """
        weight = torch.where(self.slot_is_fill, fill_weight, 1.0 + lead_weight * 0.5**self.slot_rank)
        return self.next.mean() + (self.slot * weight).sum() / weight.sum().clamp(min=1.0)

    def summary(self) -> Tensor:
        """Mean next-token, content and fill losses (3,), NaN where a batch has none; stays on the device."""
        is_fill = self.slot_is_fill
        parts = (self.next, self.slot[~is_fill], self.slot[is_fill])
        return torch.stack([part.detach().float().mean() for part in parts])


def tensors(batch: Batch, device: torch.device) -> dict[str, Tensor]:
    """The arrays of a batch on the device."""
    pinned = device.type == "cuda"
    found = {f.name: torch.from_numpy(getattr(batch, f.name)) for f in fields(batch)}
    return {n: (t.pin_memory() if pinned else t).to(device, non_blocking=pinned) for n, t in found.items()}


def _loss(h: Tensor, embedding: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(h, embedding).float(), target, ignore_index=-100, reduction="none")


class Objective:
    """The two losses of a network; compiled on demand."""

    def __init__(self, network: Network, config: TrainConfig, *, compiled: bool) -> None:
        self.network, self.config = network, config
        device = next(network.parameters()).device
        self.is_cuda = device.type == "cuda"
        self.chunk = (
            16_384 if self.is_cuda else 1024
        )  # targets per product with the vocabulary: static shapes, small logits
        self.loss = torch.compile(_loss) if compiled else _loss

    def mask(self, b: dict[str, Tensor]) -> Mask:
        """The mask rule, in the form that suits the device."""
        rule = block_mask if self.is_cuda else visible
        return rule(b["document"], b["start"], b["low"], b["length"], b["truth"].shape[2])

    def losses(self, b: dict[str, Tensor], generator: torch.Generator) -> Losses:
        """Losses of a batch under freshly drawn masks."""
        rows, num_clean = b["tokens"].shape
        truth, slots = b["truth"], b["truth"].shape[2]
        hidden, kind = draw_hidden(b["length"], slots, self.config.full_mask, self.config.left_mask, generator)
        noisy = torch.where(hidden, MASK, truth).view(rows, -1)
        at = torch.arange(slots, device=truth.device)
        slot_position = ((b["start"] - b["low"])[:, :, None] + at).view(rows, -1)
        ids = torch.cat([b["tokens"], noisy], 1)
        position = torch.cat([b["position"], slot_position], 1)
        h = self.network.hidden(ids, position, self.mask(b))
        follows = (b["document"][:, 1:] == b["document"][:, :-1]) & (b["document"][:, 1:] >= 0)
        rank = (hidden.cumsum(-1) - 1).view(rows, -1)
        hidden = hidden.view(rows, -1)
        targets = torch.cat([b["tokens"][:, 1:][follows], truth.view(rows, -1)[hidden]]).long()
        states = torch.cat([h[:, : num_clean - 1][follows], h[:, num_clean:][hidden]])
        loss = self._per_target(states, targets)
        num = int(follows.sum())
        is_fill = (at >= b["content"][:, :, None]).view(rows, -1)[hidden]
        middle = b["is_middle"].repeat_interleave(slots, 1)[hidden]
        kinds = kind.repeat_interleave(slots, 1)[hidden]
        return Losses(loss[:num], b["in_middle"][:, 1:][follows], loss[num:], is_fill, middle, kinds, rank[hidden])

    def _per_target(self, states: Tensor, targets: Tensor) -> Tensor:
        """Per-target loss; padded to whole chunks so that one compiled graph serves all batches."""
        num = len(targets)
        pad = -num % self.chunk
        states, targets = F.pad(states, (0, 0, 0, pad)), F.pad(targets, (0, pad), value=-100)
        weight = self.network.embedding.weight
        parts = zip(states.split(self.chunk), targets.split(self.chunk), strict=True)
        return torch.cat([self.loss(h, weight, y) for h, y in parts])[:num]


def held_out_batches(root: Path, config: TrainConfig, device: torch.device, num: int) -> list[dict[str, Tensor]]:
    """The same held-out batches every time."""
    rows = open_rows(root, "val", config, VALIDATION_SEED)
    return [tensors(rows.batch(), device) for _ in range(num)]


@torch.no_grad()
def validate(objective: Objective, batches: list[dict[str, Tensor]], seed: int = VALIDATION_SEED) -> dict[str, float]:
    """Mean losses in nats on held-out batches, apart by what was predicted from what."""
    device = batches[0]["tokens"].device
    generator = torch.Generator(device).manual_seed(seed)
    got: dict[str, list[Tensor]] = {}
    for batch in batches:
        with torch.autocast(device.type, torch.bfloat16):
            x = objective.losses(batch, generator)
        content = x.slot_in_middle & ~x.slot_is_fill
        parts = {
            "ar_context": x.next[~x.next_in_middle],
            "ar_middle": x.next[x.next_in_middle],
            "text": x.slot[~x.slot_in_middle],
            "content": x.slot[content],
            "content_first": x.slot[content & (x.slot_rank == 0)],
            "content_full_mask": x.slot[content & (x.slot_kind == 0)],
            "content_left_mask": x.slot[content & (x.slot_kind == 1)],
            "content_random_mask": x.slot[content & (x.slot_kind == 2)],
            "fill": x.slot[x.slot_is_fill],
        }
        for name, loss in parts.items():
            got.setdefault(name, []).append(loss.float())
    return {name: round(torch.cat(parts).mean().item(), 4) for name, parts in got.items()}
