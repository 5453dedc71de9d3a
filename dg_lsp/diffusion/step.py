"""The state of one canvas after a denoising step."""

from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from dg_lsp.canvas.layout import Canvas, Flags, TokenIds
from dg_lsp.diffusion.denoiser import Floats


class Stop(StrEnum):
    """Why a canvas needs no further step."""

    FILLED = "filled"
    """Mask noise: no mask is left."""
    STABLE = "stable"
    """Uniform noise: the draft stayed the same and its mean entropy is low."""
    MAX_STEPS = "max-steps"
    """The last allowed step committed the best guess at every position."""


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One canvas of current length L.

    A committed end token removes the positions after it; expand and delete tokens change the length too.
    """

    number: int
    """Steps done so far; 0 before the first."""
    canvas_ids: TokenIds
    """Shape (L,): input of the next forward pass."""
    draft_ids: TokenIds
    """Shape (L,): the best guess at every position."""
    frozen: Flags
    """Shape (L,): positions given from the start."""
    committed: Flags
    """Shape (L,): positions that do not change any more, frozen ones included."""
    confidence: Floats
    """Shape (L,): probability of the draft's token; for a committed one, when it was committed; 1 where frozen."""
    num_stable: int = 0
    """Uniform noise: number of consecutive steps with the same draft."""
    stop: Stop | None = None

    @classmethod
    def before(cls, canvas: Canvas) -> "Step":
        """The state before the first step."""
        return cls(
            number=0,
            canvas_ids=canvas.canvas_ids,
            draft_ids=canvas.canvas_ids,
            frozen=canvas.frozen,
            committed=canvas.frozen,
            confidence=canvas.frozen.astype(np.float32),
        )

    def take(self, positions: npt.NDArray[np.intp] | slice) -> "Step":
        """The canvas restricted to these positions, in this order; a repeated position is repeated."""
        return replace(
            self,
            canvas_ids=self.canvas_ids[positions],
            draft_ids=self.draft_ids[positions],
            frozen=self.frozen[positions],
            committed=self.committed[positions],
            confidence=self.confidence[positions],
        )

    @property
    def num_settled(self) -> int:
        """Length of the leading run of committed positions, which may be shown already."""
        open_positions = np.flatnonzero(~self.committed)
        return int(open_positions[0]) if len(open_positions) else len(self.committed)
