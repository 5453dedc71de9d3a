"""Draws masks over canvases, on the device that trains. Knows slots and shares; no network."""

import torch
from torch import Tensor

FULL, LEFT, RANDOM = 0, 1, 2


def draw_hidden(
    length: Tensor, slots: int, full: float, left: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Which slots (R, C, L) are masked, and each canvas's kind (R, C): FULL, LEFT or RANDOM.

    length (R, C): slots in use. A share `full` is all masks; in a share `left` the first slots are known and the rest
    is not, as when decoding always takes the leftmost mask; else every slot is hidden at a rate of U(0, 1).
    Every canvas in use hides at least one slot.
    """
    device, shape = length.device, tuple(length.shape)
    which = torch.rand(shape, device=device, generator=generator)
    rate = torch.rand(shape, device=device, generator=generator)
    noise = torch.rand((*shape, slots), device=device, generator=generator)
    at = torch.arange(slots, device=device).expand(*shape, slots)
    used = at < length[..., None]
    kind = torch.where(which < full, FULL, torch.where(which < full + left, LEFT, RANDOM))
    known_left = at < (rate * length).floor()[..., None]
    hidden = torch.where((kind == LEFT)[..., None], ~known_left, noise < rate[..., None])
    hidden = hidden | (kind == FULL)[..., None]
    lowest = noise.masked_fill(~used, 2.0).argmin(-1, keepdim=True)
    at_least_one = (at == lowest) & (kind == RANDOM)[..., None]
    return (hidden | at_least_one) & used, kind
