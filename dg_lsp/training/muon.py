"""Muon: momentum whose update is orthogonalised (Keller Jordan, 2024). Matrices of one shape are done as one batch.

The arithmetic is torch.optim.Muon's with `adjust_lr_fn="match_rms_adamw"` (Moonlight, arXiv 2502.16982); one product
per shape instead of one per matrix is what a GPU wants, where thousands of launches would cost more than the work.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
NUM_ITERATIONS = 5
EPSILON = 1e-7


def orthogonalised(update: Tensor) -> Tensor:
    """Nearest semi-orthogonal matrices, roughly: five Newton-Schulz steps in bfloat16. update (n, rows, columns)."""
    a, b, c = COEFFICIENTS
    x = update.bfloat16()
    is_tall = x.shape[1] > x.shape[2]
    if is_tall:
        x = x.mT
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=EPSILON)
    for _ in range(NUM_ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if is_tall else x


class Muon(torch.optim.Optimizer):
    """For matrices only; every step needs a gradient for each of them."""

    def __init__(self, params: Iterable[Tensor], lr: float, weight_decay: float, momentum: float = 0.95) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """One update with Nesterov momentum; there is no closure."""
        assert closure is None
        for group in self.param_groups:
            shapes: dict[tuple[int, ...], list[Tensor]] = defaultdict(list)
            for weight in group["params"]:
                shapes[tuple(weight.shape)].append(weight)
            for weights in shapes.values():
                self._update(weights, group)

    def _update(self, weights: list[Tensor], group: dict[str, Any]) -> None:
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        momenta = [self._momentum(weight) for weight in weights]
        keep = group["momentum"]
        torch._foreach_lerp_(momenta, gradients, 1 - keep)
        torch._foreach_lerp_(gradients, momenta, keep)
        update = orthogonalised(torch.stack(gradients))
        rate = group["lr"] * 0.2 * max(weights[0].shape) ** 0.5
        torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(weights, list(update.to(weights[0].dtype).unbind()), alpha=-rate)

    def _momentum(self, weight: Tensor) -> Tensor:
        state = self.state[weight]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(weight)
        return state["momentum"]
