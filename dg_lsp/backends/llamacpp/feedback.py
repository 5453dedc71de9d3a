"""How a canvas's last prediction gets into its next pass: what is kept of it, and what the model reads then.

On the host few rows of the embedding table are summed, as they lie in the file; see `device_feedback` for a GPU.
"""

from typing import Any, Protocol

import numpy as np

from dg_lsp.backends.llamacpp.embeddings import EmbeddingTable
from dg_lsp.backends.llamacpp.mixture import MASS, Mixture, mixture
from dg_lsp.backends.llamacpp.selfcond import SelfConditioning
from dg_lsp.diffusion.denoiser import Floats, Prediction


class Feedback(Protocol):
    """What is kept belongs to the one that kept it."""

    def keep(self, weights: Floats, prediction: Prediction) -> Any:
        """What the next pass needs of a prediction; weights of shape (L, V), the best token's being 1."""
        ...

    def condition(self, embedded: Floats, kept: Any) -> Floats:
        """What the model reads, shape (L, H); `embedded`, of that shape, are the tokens' own embeddings, scaled."""
        ...

    def close(self) -> None:
        """Gives memory back. Harmless when repeated."""
        ...


class HostFeedback:
    """Sparse, by probability mass."""

    def __init__(self, table: EmbeddingTable, network: SelfConditioning, mass: float = MASS) -> None:
        self._table = table
        self._network = network
        self._mass = mass

    def keep(self, weights: Floats, prediction: Prediction) -> Mixture:
        """See `Feedback.keep`: the tokens that hold the mass. Nothing is summed before it is asked for."""
        return mixture(weights, prediction, self._mass)

    def condition(self, embedded: Floats, kept: Mixture) -> Floats:
        """See `Feedback.condition`."""
        soft = self._table.mix(kept.ids, kept.shares)
        return self._network.condition(embedded, soft * scale(soft.shape[1]))

    def close(self) -> None:
        """The table is not its own."""


def scale(width: int) -> np.float32:
    """Gemma's own of its embeddings, which llama.cpp applies to ids only."""
    return np.sqrt(np.float32(width))
