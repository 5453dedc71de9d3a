"""A denoiser for one of several requests that take turns."""

from collections.abc import Sequence

import numpy as np

from dg_lsp.canvas.plan import TokenIds
from dg_lsp.diffusion.denoiser import Denoiser, Prediction
from dg_lsp.engine.slots import Slots
from dg_lsp.engine.wrapped import WrappedDenoiser


class HoldingDenoiser(WrappedDenoiser):
    """Makes its slot hold again what it held, wherever another request has used the model since.

    That costs nothing while the slot was left alone. A model that is conditioned on its last prediction begins anew.
    """

    def __init__(self, inner: Denoiser, slots: Slots) -> None:
        super().__init__(inner)
        self._slots = slots
        self._held: list[TokenIds] = []

    def prefill(self, slot: int, prompt_ids: TokenIds) -> int:
        """As the inner denoiser's."""
        self._slots.user, self._held = self, [prompt_ids]
        return super().prefill(slot, prompt_ids)

    def predict(
        self,
        slot: int,
        canvases: Sequence[TokenIds],
        temperature: float,
        rng: np.random.Generator,
        lanes: Sequence[int] = (),
    ) -> list[Prediction]:
        """As the inner denoiser's."""
        self._regain(slot)
        return super().predict(slot, canvases, temperature, rng, lanes)

    def extend(self, slot: int, ids: TokenIds) -> Prediction:
        """As the inner denoiser's."""
        self._regain(slot)
        prediction = super().extend(slot, ids)
        self._held.append(ids)
        return prediction

    def _regain(self, slot: int) -> None:
        if self._slots.user is not self and self._held:
            held = np.concatenate(self._held)
            self.prefill(slot, held)
            self._slots.hold(slot, held)
