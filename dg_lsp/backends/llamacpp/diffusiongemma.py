"""The denoiser for DiffusionGemma: canvases go in as embeddings that hold what the model last said of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dg_lsp.backends.llamacpp.denoiser import LlamaDenoiser
from dg_lsp.backends.llamacpp.device_feedback import GPU_KINDS, feedback_of
from dg_lsp.backends.llamacpp.memory_estimate import MAX_CANVASES
from dg_lsp.backends.llamacpp.model import LlamaModel
from dg_lsp.backends.llamacpp.self_conditioning import MASS, EmbeddingTable, SelfConditioning, scale
from dg_lsp.backends.llamacpp.threads import physical_cores
from dg_lsp.canvas.layout import TokenIds
from dg_lsp.canvas.spec import ModelSpec
from dg_lsp.diffusion.denoiser import Floats, Prediction, checked_canvases
from dg_lsp.errors import ModelUnsupportedError, RequestError
from dg_lsp.gguf import read_header
from dg_lsp.settings import RuntimeSettings

_MAX_DECODERS = 8
"""Threads that decode embeddings; memory is as fast as it gets with fewer."""


@dataclass(frozen=True, slots=True, eq=False)
class _Said:
    """What is kept of a pass over one canvas."""

    kept: Any
    length: int


class SelfConditionedDenoiser(LlamaDenoiser):
    """See `Denoiser`. Remembers by slot and lane what was said last, until the slot's next `prefill`.

    Conditions every position, frozen ones too, on what the model itself said of it.
    """

    def __init__(
        self,
        model: LlamaModel,
        spec: ModelSpec,
        settings: RuntimeSettings,
        *,
        mass: float = MASS,
        kinds: tuple[int, ...] = GPU_KINDS,
    ) -> None:
        """Reads the side file and measures the threads.

        Args:
            model: taken over.
            spec: says which the side file is.
            settings: how the model runs.
            mass: of the probability that the host feeds back at least; 1 is exact, and slow with a large vocabulary.
            kinds: of ggml's devices that may feed back instead of the host, if the model is on a GPU; none keeps it
                on the host.

        Raises:
            ModelError: as of `LlamaDenoiser`; or the side file is missing, damaged or another model's.
        """
        if spec.self_conditioning is None or not model.has_plain_positions:
            raise ModelUnsupportedError(f"{model.path} has no self-conditioning; open it with LlamaDenoiser")
        width = model.embedding_length
        epsilon = float(model.metadata[f"{model.metadata['general.architecture']}.attention.layer_norm_rms_epsilon"])
        self._network = SelfConditioning.open(model.path, spec.self_conditioning, width, epsilon)
        super().__init__(model, spec, settings)
        decoders = min(physical_cores(), _MAX_DECODERS) if model.on_gpu else self.threads
        self._table = EmbeddingTable(read_header(model.path), spec.vocab_size, width, threads=decoders)
        self._feedback = feedback_of(self._table, self._network, mass=mass, kinds=kinds if model.on_gpu else ())
        self._said: dict[int, dict[int, _Said]] = {}
        """By slot, then lane."""

    def prefill(self, slot: int, prompt_ids: TokenIds) -> int:
        """See `Denoiser.prefill`; forgets what was said after the slot's last prompt."""
        self._said.pop(slot, None)
        return super().prefill(slot, prompt_ids)

    def extend(self, slot: int, ids: TokenIds) -> Prediction:
        """See `Denoiser.extend`; forgets like `prefill`."""
        self._said.pop(slot, None)
        return super().extend(slot, ids)

    def predict(
        self,
        slot: int,
        canvases: Sequence[TokenIds],
        temperature: float,
        rng: np.random.Generator,
        lanes: Sequence[int] = (),
    ) -> list[Prediction]:
        """See `Denoiser.predict`.

        Raises:
            RequestError: as there, or there is not one lane for each canvas.
        """
        checked = checked_canvases(
            canvases, self.spec.vocab_size, max_canvases=MAX_CANVASES, max_canvas_tokens=self._budget.canvas_tokens
        )
        chosen = list(lanes) or list(range(len(checked)))
        if len(chosen) != len(checked) or len({*chosen}) != len(chosen):
            raise RequestError(f"{len(checked)} canvases need as many different lanes, not {chosen}")
        said = self._said.get(slot, {})
        rows = [self._rows(ids, said.get(lane)) for ids, lane in zip(checked, chosen, strict=True)]
        predictions = self.predict_rows(slot, rows, temperature, rng)
        self._said[slot] = {**said, **self._remembered(predictions, chosen)}
        return predictions

    def close(self) -> None:
        """Frees everything. Harmless when repeated."""
        self._feedback.close()
        self._table.close()
        super().close()

    def _rows(self, ids: TokenIds, said: _Said | None) -> Floats:
        """What the model reads instead of the canvas's ids, shape (L, H)."""
        rows = self._table.rows(ids)
        embedded = rows * scale(rows.shape[1])
        if said is None or said.length != len(ids):
            return self._network.condition(embedded, None)
        return self._feedback.condition(embedded, said.kept)

    def _remembered(self, predictions: Sequence[Prediction], lanes: Sequence[int]) -> dict[int, _Said]:
        """What the last pass said, by lane; to be asked before the next pass."""
        stops = np.cumsum([len(prediction.entropy) for prediction in predictions]).tolist()
        weights = self._reducer.weights(stops[-1])
        said = {}
        for lane, prediction, start, stop in zip(lanes, predictions, [0, *stops], stops, strict=False):
            said[lane] = _Said(self._feedback.keep(weights[start:stop], prediction), stop - start)
        return said
