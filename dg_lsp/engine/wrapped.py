"""A denoiser around another; what a kind of it does not change passes through."""

from collections.abc import Sequence

import numpy as np

from dg_lsp.canvas.plan import TokenIds
from dg_lsp.canvas.spec import ModelSpec
from dg_lsp.diffusion.denoiser import Denoiser, Footprint, Prediction


class WrappedDenoiser:
    """See `Denoiser`."""

    def __init__(self, inner: Denoiser) -> None:
        self._inner = inner

    @property
    def spec(self) -> ModelSpec:
        """The inner denoiser's."""
        return self._inner.spec

    @property
    def num_slots(self) -> int:
        """The inner denoiser's."""
        return self._inner.num_slots

    @property
    def footprint(self) -> Footprint:
        """The inner denoiser's."""
        return self._inner.footprint

    def prefill(self, slot: int, prompt_ids: TokenIds) -> int:
        """As the inner denoiser's."""
        return self._inner.prefill(slot, prompt_ids)

    def predict(
        self,
        slot: int,
        canvases: Sequence[TokenIds],
        temperature: float,
        rng: np.random.Generator,
        lanes: Sequence[int] = (),
    ) -> list[Prediction]:
        """As the inner denoiser's."""
        return self._inner.predict(slot, canvases, temperature, rng, lanes)

    def extend(self, slot: int, ids: TokenIds) -> Prediction:
        """As the inner denoiser's."""
        return self._inner.extend(slot, ids)

    def close(self) -> None:
        """Does nothing: whoever made the inner denoiser closes it."""
