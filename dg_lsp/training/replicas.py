"""Several processes that train one network, each on its own rows, and meet once a step.

On CPU cores that others use too, threads which wait for each other at every operation lose most of their time to the
one that was interrupted (measured: a fifth of the speed); processes that only meet to average gradients do not.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Replicas:
    """One process's view of all of them; a single process by default."""

    rank: int = 0
    num: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this process reports, validates and saves."""
        return self.rank == 0

    def average_gradients(self, weights: list[Tensor]) -> None:
        """Every process goes on with the mean gradient."""
        if self.num == 1:
            return
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        parts = flat.div_(self.num).split([gradient.numel() for gradient in gradients])
        torch._foreach_copy_(gradients, [part.view_as(g) for part, g in zip(parts, gradients, strict=True)])

    def agreed(self, value: float) -> float:
        """The first process's value, for decisions that all must take alike."""
        if self.num == 1:
            return value
        shared = torch.tensor([value], dtype=torch.float64)
        dist.broadcast(shared, 0)
        return float(shared)

    def gathered(self, value: Any) -> list[Any]:
        """Every process's value on the first process, an empty list elsewhere."""
        if self.num == 1:
            return [value]
        values: list[Any] = [None] * self.num
        dist.gather_object(value, values if self.is_first else None, 0)
        return values if self.is_first else []


def join(rank: int, num: int, meeting_point: Path) -> Replicas:
    """Joins `num` processes on this machine that meet at one file; CPU only."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{meeting_point}", rank=rank, world_size=num)
    return Replicas(rank, num)
