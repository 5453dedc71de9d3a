"""The fill so far: what is settled of it."""

from dataclasses import dataclass, replace

import numpy as np

from dg_lsp.canvas.plan import TokenIds, among, token_ids
from dg_lsp.diffusion.denoiser import Floats
from dg_lsp.diffusion.step import Step


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """Settled tokens of one candidate, the end token left out."""

    ids: TokenIds
    confidence: Floats
    """Probability of each token when it was committed, that of the end token included."""
    is_ended: bool
    steps: int
    """Forward passes that it took."""
    join: float = 0.0
    """How well what stands frozen after it follows from it, mean log probability in nats; 0 where nothing does."""

    @classmethod
    def empty(cls) -> "Draft":
        """Nothing yet."""
        return cls(token_ids([]), np.empty(0, np.float32), is_ended=False, steps=0)

    def grow(self, ids: TokenIds, confidence: Floats, end_ids: TokenIds) -> "Draft":
        """This draft and committed tokens after it, up to the first end token."""
        ends = np.flatnonzero(among(ids, end_ids))
        length = int(ends[0]) if len(ends) else len(ids)
        return replace(
            self,
            ids=token_ids(np.concatenate([self.ids, ids[:length]])),
            confidence=np.concatenate([self.confidence, confidence[: length + bool(len(ends))]]),
            is_ended=bool(len(ends)),
        )

    def settle(self, step: Step, end_ids: TokenIds) -> "Draft":
        """This draft and what has settled of the canvas after it."""
        settled = slice(0, step.num_settled)
        grown = self.grow(step.canvas_ids[settled], step.confidence[settled], end_ids)
        return replace(grown, steps=self.steps + step.number)

    @property
    def score(self) -> float:
        """Mean log probability per token in nats, and that of the join."""
        if not len(self.confidence):
            return self.join
        return float(np.log(np.maximum(self.confidence, 1e-9)).mean()) + self.join

    @property
    def tokens_per_forward(self) -> float:
        """Tokens, the end token included, per forward pass."""
        return len(self.confidence) / self.steps if self.steps else 0.0
