"""What is minimised: next-token loss on the clean stream plus denoising loss on the canvases. Knows no optimizer."""

from dataclasses import dataclass, fields
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from dg_lsp.training.attention import Mask, visible
from dg_lsp.training.blocks import block_mask
from dg_lsp.training.config import TrainConfig
from dg_lsp.training.cross_entropy import linear_cross_entropy
from dg_lsp.training.feed import open_rows
from dg_lsp.training.network import Network
from dg_lsp.training.noise import draw_hidden
from dg_lsp.training.rows import Batch
from dg_lsp.training.vocabulary import DELETE, EXPAND, MASK

VALIDATION_SEED = 7
CHUNK = 16_384  # targets of one product with the vocabulary on a GPU


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
    slot_share: Tensor  # share of its canvas that is hidden

    def total(self, config: TrainConfig) -> Tensor:
        """What is minimised: mean next-token loss plus weighted mean denoising loss.

        The easy fill weighs less; the leftmost hidden slots, whose predictions are taken first, weigh more.
        """
        weight = torch.where(self.slot_is_fill, config.fill_weight, 1.0 + config.lead_weight * 0.5**self.slot_rank)
        if config.inverse_rate:
            weight = weight * (1.0 / self.slot_share).clamp(max=config.inverse_rate)
        return config.next_weight * self.next.mean() + (self.slot * weight).sum() / weight.sum().clamp(min=1.0)

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
        # nobody ever sees an expand or a delete token: they say what becomes of a mask
        hidden = hidden | (truth == EXPAND) | (truth == DELETE)
        noisy = torch.where(hidden, MASK, truth).view(rows, -1)
        at = torch.arange(slots, device=truth.device)
        slot_position = ((b["start"] - b["low"])[:, :, None] + at).view(rows, -1)
        ids = torch.cat([b["tokens"], noisy], 1)
        position = torch.cat([b["position"], slot_position], 1)
        h = self.network.hidden(ids, position, self.mask(b))
        follows = (b["document"][:, 1:] == b["document"][:, :-1]) & (b["document"][:, 1:] >= 0)
        rank = (hidden.cumsum(-1) - 1).view(rows, -1)
        share = hidden.sum(-1) / b["length"].clamp(min=1)
        hidden = hidden.view(rows, -1)
        targets = torch.cat([b["tokens"][:, 1:][follows], truth.view(rows, -1)[hidden]]).long()
        states = torch.cat([h[:, : num_clean - 1][follows], h[:, num_clean:][hidden]])
        loss = self._per_target(states, targets)
        num = int(follows.sum())
        is_fill = (at >= b["content"][:, :, None]).view(rows, -1)[hidden]
        middle = b["is_middle"].repeat_interleave(slots, 1)[hidden]
        kinds = kind.repeat_interleave(slots, 1)[hidden]
        shares = share.repeat_interleave(slots, 1)[hidden]
        return Losses(
            loss[:num], b["in_middle"][:, 1:][follows], loss[num:], is_fill, middle, kinds, rank[hidden], shares
        )

    def _per_target(self, states: Tensor, targets: Tensor) -> Tensor:
        """Nats per target."""
        weight = self.network.embedding.weight
        if not self.is_cuda:
            return linear_cross_entropy(states, weight, targets)
        # padded to whole chunks so that one compiled graph serves all batches
        num = len(targets)
        pad = -num % CHUNK
        states, targets = F.pad(states, (0, 0, 0, pad)), F.pad(targets, (0, pad), value=-100)
        parts = zip(states.split(CHUNK), targets.split(CHUNK), strict=True)
        return torch.cat([self.loss(h, weight, y) for h, y in parts])[:num]


def held_out_batches(root: Path, config: TrainConfig, device: torch.device, num: int) -> list[dict[str, Tensor]]:
    """The same held-out batches every time."""
    rows = open_rows(root, "val", config, VALIDATION_SEED)
    return [tensors(rows.batch(), device) for _ in range(num)]


def without_canvases(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """The clean stream of a batch alone."""
    of_canvases = {"start", "low", "length", "content", "is_middle", "truth"}
    return {name: tensor[:, :0] if name in of_canvases else tensor for name, tensor in batch.items()}


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
