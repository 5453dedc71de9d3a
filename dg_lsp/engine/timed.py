"""A denoiser that counts the time spent inside another."""

from collections.abc import Sequence

import numpy as np

from dg_lsp.canvas.plan import TokenIds
from dg_lsp.canvas.spec import ModelSpec
from dg_lsp.diffusion.denoiser import Denoiser, Prediction
from dg_lsp.engine.stopwatch import Stopwatch
from dg_lsp.engine.wrapped import WrappedDenoiser


class TimedDenoiser(WrappedDenoiser):
    """Counts to the stages `prefill` and `predict` of a request's stopwatch."""

    def __init__(self, inner: Denoiser, watch: Stopwatch, spec: ModelSpec | None = None) -> None:
        """`spec` is how this request asks the model, where that is not the model's own way."""
        super().__init__(inner)
        self._watch = watch
        self._spec = spec or inner.spec

    @property
    def spec(self) -> ModelSpec:
        """The inner denoiser's, unless this request asks otherwise."""
        return self._spec

    def prefill(self, slot: int, prompt_ids: TokenIds) -> int:
        """As the inner denoiser's."""
        with self._watch.stage("prefill"):
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
        with self._watch.stage("predict"):
            return super().predict(slot, canvases, temperature, rng, lanes)

    def extend(self, slot: int, ids: TokenIds) -> Prediction:
        """As the inner denoiser's; counts to `predict`."""
        with self._watch.stage("predict"):
            return super().extend(slot, ids)
