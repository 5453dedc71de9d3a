"""Canvases of one decode, each after the same tokens, and which of the decode's logits say what stands in them."""

from collections.abc import Sequence

import numpy as np

from dg_lsp.backends.llamacpp.predictions import merged, open_positions, settled
from dg_lsp.backends.llamacpp.reduce import Reduced
from dg_lsp.canvas.plan import Flags, TokenIds
from dg_lsp.canvas.spec import ModelSpec
from dg_lsp.diffusion.denoiser import Prediction


class Asked:
    """Canvases that have an open position."""

    def __init__(self, before: TokenIds, canvases: Sequence[TokenIds], spec: ModelSpec) -> None:
        """`before`, shape (B,), is decoded along before every canvas."""
        self._canvases = canvases
        self._flags = [open_positions(canvas, spec) for canvas in canvases]
        self.ids = np.concatenate([part for canvas in canvases for part in (before, canvas)])
        """All of them, shape (N,)."""
        self.lengths = [len(before) + len(canvas) for canvas in canvases]
        starts = np.cumsum([0, *self.lengths[:-1]])
        shift = 1 if spec.is_shifted else 0
        rows = [
            # nothing comes before the very first token: it is asked at itself, as the models' authors do
            start + np.maximum(np.flatnonzero(flags) + len(before) - shift, 0)
            for start, flags in zip(starts, self._flags, strict=True)
        ]
        self._stops = np.cumsum([len(of_canvas) for of_canvas in rows]).tolist()
        self.rows, self._places = np.unique(np.concatenate(rows), return_inverse=True)
        """Places among the ids whose logits are wanted, ascending."""

    @property
    def outputs(self) -> Flags:
        """Shape (N,): where logits are wanted."""
        outputs = np.zeros(len(self.ids), dtype=np.bool_)
        outputs[self.rows] = True
        return outputs

    def predictions(self, reduced: Reduced) -> list[Prediction]:
        """One for each canvas, from what was computed at `rows`."""
        said = reduced.take(self._places)
        parts = (slice(start, stop) for start, stop in zip([0, *self._stops], self._stops, strict=False))
        return [
            merged(canvas, flags, said, part)
            for canvas, flags, part in zip(self._canvases, self._flags, parts, strict=True)
        ]


def completed(canvases: Sequence[TokenIds], said: Sequence[Prediction], spec: ModelSpec) -> list[Prediction]:
    """What was said of the open canvases, and of the others that they hold what they hold."""
    answers = iter(said)
    return [next(answers) if open_positions(canvas, spec).any() else settled(canvas) for canvas in canvases]


def with_masks(canvases: Sequence[TokenIds], spec: ModelSpec) -> list[TokenIds]:
    """Those that have to be asked: a canvas without an open position predicts itself, and costs nothing."""
    return [canvas for canvas in canvases if open_positions(canvas, spec).any()]
