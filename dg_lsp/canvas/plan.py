"""A canvas: a block of token ids to be denoised after a cached prompt, some of them frozen."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

TokenIds = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]


def token_ids(ids: npt.ArrayLike) -> TokenIds:
    """Ids as a read-only int32 array of shape (N,)."""
    array = np.array(ids, dtype=np.int32).reshape(-1)
    array.setflags(write=False)
    return array


def among(ids: TokenIds, wanted: TokenIds) -> Flags:
    """Which ids are any of a few wanted ones; shape (N,). Several times faster than `numpy.isin` at this size."""
    found: Flags = (ids[:, None] == wanted).any(axis=1)
    return found


def common_prefix_length(a: TokenIds, b: TokenIds) -> int:
    """How many ids the two share from their start."""
    shortest = min(len(a), len(b))
    differs = np.flatnonzero(a[:shortest] != b[:shortest])
    return int(differs[0]) if len(differs) else shortest


@dataclass(frozen=True, slots=True, eq=False)
class CanvasPlan:
    """What is prefilled into the KV cache, and what is denoised after it."""

    prompt_ids: TokenIds
    """Shape (P,): encoded causally, cached."""
    canvas_ids: TokenIds
    """Shape (L,): the canvas before the first step; free positions hold masks or noise."""
    frozen: Flags
    """Shape (L,): positions that the user already wrote; never changed, left out of every mean."""

    def __post_init__(self) -> None:
        if self.canvas_ids.shape != self.frozen.shape:
            raise ValueError(f"canvas of {self.canvas_ids.shape} but frozen flags of {self.frozen.shape}")
