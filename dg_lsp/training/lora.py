"""Low-rank adaptation (Hu et al., arXiv 2106.09685): few trained weights beside frozen ones, merged for export."""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from dg_lsp.training.network import DiffusionNetwork
from dg_lsp.training.tokenizer import SPECIAL_TOKENS

SCALE = 2.0  # of the product of both small matrices


class _LowRank(nn.Module):
    """Adds a trained product of rank `rank`, zero at first, to a frozen matrix."""

    def __init__(self, weight: Tensor, rank: int) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.randn(rank, weight.shape[1], device=weight.device) * weight.shape[1] ** -0.5)
        self.b = nn.Parameter(torch.zeros(weight.shape[0], rank, device=weight.device))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + SCALE * (self.b @ self.a)


class _FirstRows(nn.Module):
    """Replaces the rows of the special tokens by trained ones."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.rows = nn.Parameter(weight[: len(SPECIAL_TOKENS)].detach().clone())

    def forward(self, weight: Tensor) -> Tensor:
        return torch.cat([self.rows, weight[len(self.rows) :]])


def add_adapters(network: DiffusionNetwork, rank: int) -> None:
    """Freezes all weights; adds a low-rank matrix to every matrix of the blocks, and trains the special tokens."""
    network.requires_grad_(False)
    for module in list(network.blk.modules()):
        if isinstance(module, nn.Linear):
            parametrize.register_parametrization(module, "weight", _LowRank(module.weight, rank))
    for table in _vocabulary_matrices(network):
        parametrize.register_parametrization(table, "weight", _FirstRows(cast(Tensor, table.weight)))


def merge_adapters(network: DiffusionNetwork) -> None:
    """Makes the adapted matrices plain ones, in place; does nothing without adapters."""
    for module in list(network.modules()):
        if parametrize.is_parametrized(module, "weight"):
            parametrize.remove_parametrizations(module, "weight", leave_parametrized=True)


def _vocabulary_matrices(network: DiffusionNetwork) -> list[nn.Module]:
    return [network.token_embd, *([network.output] if network.output is not None else [])]
