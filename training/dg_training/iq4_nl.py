"""IQ4_NL, llama.cpp's format of 16 levels: blocks of 32 weights, a scale and a level for each weight.

`RoundedWeights` trains a network for it: gradients are taken at the rounded weights, updates go to the exact ones, so
that the network learns to be right with the weights that are shipped. Layout and levels are those of `block_iq4_nl` and
`kvalues_iq4nl` in ggml.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

BLOCK = 32
LEVELS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
CANDIDATES = range(-134, -119, 2)
"""Levels to which the largest weight of a block is scaled; the scale with the least square error is taken."""
_INDICES = np.array([min(range(16), key=lambda i: abs(LEVELS[i] - x)) for x in range(-128, 128)], np.uint8)
_VALUES = np.array(LEVELS, np.float32)[_INDICES]
"""Index of the level next to -128, -127, ..., 127, and that level."""
ROUNDED_STEPS = 4
SCALED_STEPS = 64


def _places(blocks: Tensor, scales: Tensor) -> Tensor:
    """Places in the tables above of the weights in units of their scale, uint8; blocks (n, 32), scales (n,)."""
    inverse = torch.where(scales == 0, 0.0, 1.0 / scales)
    return (blocks * inverse[:, None]).round_().clamp_(-128, 127).add_(128).byte()


def _levels(blocks: Tensor, scales: Tensor) -> Tensor:
    """The level next to each weight, (n, 32) float32."""
    places = _places(blocks, scales)
    if places.is_cuda:
        return torch.from_numpy(_VALUES).to(places.device)[places.int()]
    return torch.from_numpy(np.take(_VALUES, places.numpy()))  # six times as fast as torch's indexing on a CPU


def best_scales(weight: Tensor) -> Tensor:
    """The float16 scale of each block with the least square error; weight (..., columns), result (n,) float32."""
    blocks = weight.reshape(-1, BLOCK)
    largest = blocks.gather(1, blocks.abs().argmax(1, keepdim=True))[:, 0]
    best = torch.zeros_like(largest)
    best_gain = torch.zeros_like(largest)  # what the block's sum of squares falls by
    for candidate in CANDIDATES:
        levels = _levels(blocks, largest / candidate)
        product, square = (blocks * levels).sum(1), (levels * levels).sum(1)
        gain = product * product / square
        best = torch.where(gain > best_gain, product / square, best)
        best_gain = torch.maximum(gain, best_gain)
    return best.half().float()


def rounded(weight: Tensor, scales: Tensor) -> Tensor:
    """The weights as a file holds them."""
    blocks = weight.reshape(-1, BLOCK)
    return (_levels(blocks, scales) * scales[:, None]).view_as(weight)


def pack(weight: Tensor) -> npt.NDArray[np.uint8]:
    """The bytes of a matrix, (rows, columns / 32 * 18): per block a float16 scale, then two levels a byte."""
    scales = best_scales(weight)
    indices = np.take(_INDICES, _places(weight.reshape(-1, BLOCK), scales).numpy())
    levels = indices[:, : BLOCK // 2] | indices[:, BLOCK // 2 :] << 4  # the second half in the upper four bits
    packed = np.concatenate([scales.numpy().astype("<f2")[:, None].view(np.uint8), levels], 1)
    return packed.reshape(weight.shape[0], -1)


class RoundedWeights:
    """The matrices of a network but its embedding, rounded while a step runs."""

    def __init__(self, network: nn.Module) -> None:
        self._weights = _matrices(network)
        self._scales: list[Tensor] = []
        self._offsets: list[Tensor] = []
        self._num_steps = 0

    @contextmanager
    def step(self) -> Iterator[None]:
        """Rounds the weights within the block. They are rounded anew every few steps; between, what rounding added is
        added again, because weights move little in a step."""
        with torch.no_grad():
            if self._num_steps % SCALED_STEPS == 0:
                self._scales = [best_scales(weight) for weight in self._weights]
            if self._num_steps % ROUNDED_STEPS == 0:
                pairs = zip(self._weights, self._scales, strict=True)
                self._offsets = [rounded(weight, scales).sub_(weight) for weight, scales in pairs]
            self._num_steps += 1
            torch._foreach_add_(self._weights, self._offsets)
        yield
        with torch.no_grad():
            torch._foreach_sub_(self._weights, self._offsets)


def round_matrices(network: nn.Module) -> None:
    """Rounds the matrices of a network but its embedding in place, as `pack` does."""
    with torch.no_grad():
        for weight in _matrices(network):
            weight.copy_(rounded(weight, best_scales(weight)))


def _matrices(network: nn.Module) -> list[nn.Parameter]:
    """The weights that a file holds in this format: all matrices but the embedding."""
    return [weight for name, weight in network.named_parameters() if weight.ndim == 2 and "embd" not in name]
