"""Muon on the matrices, AdamW on the rest, and the learning rate by planned time."""

import torch
from torch import nn

from dg_lsp.training.config import OptimizerConfig
from dg_lsp.training.muon import Muon


def build_optimizers(network: nn.Module, config: OptimizerConfig) -> list[torch.optim.Optimizer]:
    """[Muon, AdamW]; one learning rate serves both, since Muon's update is scaled to AdamW's root mean square."""
    is_cuda = next(network.parameters()).is_cuda
    named = list(network.named_parameters())
    matrices = [p for name, p in named if p.ndim == 2 and "embedding" not in name]
    rest = [p for name, p in named if p.ndim != 2 or "embedding" in name]
    rate = config.learning_rate
    adamw = torch.optim.AdamW(rest, lr=rate, betas=(0.9, 0.95), weight_decay=0.0, fused=is_cuda, foreach=not is_cuda)
    return [Muon(matrices, lr=rate, weight_decay=config.weight_decay), adamw]


def rate_scale(config: OptimizerConfig, step: int, share: float) -> float:
    """Factor of the learning rate after `step` steps and a `share` of the planned time: warm-up, flat, linear to 0."""
    warm = min(1.0, (step + 1) / config.warmup_steps)
    decay = (1.0 - share) / (1.0 - config.decay_from)
    return max(0.0, min(warm, decay))


def set_rate(optimizers: list[torch.optim.Optimizer], rate: float) -> None:
    """The learning rate of the next step."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = rate
