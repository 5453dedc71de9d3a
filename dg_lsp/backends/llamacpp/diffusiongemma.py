"""The denoiser for DiffusionGemma: the model reads embeddings that include its last prediction of the canvas."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dg_lsp.backends.llamacpp.denoiser import LlamaDenoiser
from dg_lsp.backends.llamacpp.device_feedback import GPU_KINDS, choose_feedback
from dg_lsp.backends.llamacpp.model import LlamaModel
from dg_lsp.backends.llamacpp.reduce import take
from dg_lsp.backends.llamacpp.self_conditioning import MASS, EmbeddingTable, SelfConditioning, embedding_scale
from dg_lsp.backends.llamacpp.threads import physical_cores
from dg_lsp.canvas.layout import TokenIds
from dg_lsp.canvas.spec import ModelSpec
from dg_lsp.diffusion.denoiser import Floats, Prediction, check_temperature
from dg_lsp.errors import BackendError, ModelUnsupportedError, RequestError
from dg_lsp.gguf import read_header
from dg_lsp.settings import ModelSettings

_MAX_DECODERS = 8
"""Threads that decode embeddings; fewer already use the full memory bandwidth."""


@dataclass(frozen=True, slots=True, eq=False)
class _LastPass:
    """The last pass over one canvas."""

    record: Any
    """See `HostFeedback.record`."""
    length: int


class SelfConditionedDenoiser(LlamaDenoiser):
    """See `Denoiser`. Keeps the last prediction by slot and lane until the slot's next `prefill`.

    Conditions all positions, frozen ones included, on the model's own prediction.
    """

    def __init__(
        self,
        model: LlamaModel,
        spec: ModelSpec,
        settings: ModelSettings,
        *,
        mass: float = MASS,
        kinds: tuple[str, ...] = GPU_KINDS,
    ) -> None:
        """Reads the side file, makes the context and measures the threads.

        Args:
            model: becomes the denoiser's.
            spec: names the side file.
            settings: of the runtime.
            mass: probability mass that the host feeds back; 1 is exact, and slow with a large vocabulary.
            kinds: of devices that may do it instead of the host if the model is on a GPU.

        Raises:
            ModelError: see `LlamaDenoiser`; or the side file is missing, damaged or another model's.
        """
        if spec.self_conditioning is None:
            raise ModelUnsupportedError(f"{model.path} has no self-conditioning; open it with LlamaDenoiser")
        width = model.embedding_length
        epsilon = float(model.metadata[f"{model.metadata['general.architecture']}.attention.layer_norm_rms_epsilon"])
        self._network = SelfConditioning.open(model.path, spec.self_conditioning, width, epsilon)
        super().__init__(model, spec, settings)
        decoders = min(physical_cores(), _MAX_DECODERS) if model.on_gpu else self.threads
        self._table = EmbeddingTable(read_header(model.path), spec.vocab_size, width, threads=decoders)
        self._feedback = choose_feedback(self._table, self._network, mass=mass, kinds=kinds if model.on_gpu else ())
        self._last_passes: dict[int, dict[int, _LastPass]] = {}
        """By slot, then lane."""

    def prefill(self, slot: int, prompt_ids: TokenIds) -> int:
        """See `Denoiser.prefill`; forgets the slot's predictions."""
        self._last_passes.pop(slot, None)
        return super().prefill(slot, prompt_ids)

    def extend(self, slot: int, ids: TokenIds) -> Prediction:
        """See `Denoiser.extend`; forgets the slot's predictions."""
        self._last_passes.pop(slot, None)
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
            RequestError: see there; or the lanes are not one for each canvas.
        """
        check_temperature(temperature)
        checked = self._checked_canvases(slot, canvases)
        chosen = list(lanes) or list(range(len(checked)))
        if len(chosen) != len(checked) or len({*chosen}) != len(chosen):
            raise RequestError(f"{len(checked)} canvases need as many different lanes, not {chosen}")
        last = self._last_passes.get(slot, {})
        rows = [self._input_rows(ids, last.get(lane)) for ids, lane in zip(checked, chosen, strict=True)]
        predictions = self._predict_rows(slot, rows, temperature, rng)
        self._last_passes[slot] = {**last, **self._recorded(predictions, chosen)}
        return predictions

    def close(self) -> None:
        """Frees everything. Idempotent."""
        self._feedback.close()
        self._table.close()
        super().close()

    def _input_rows(self, ids: TokenIds, last: _LastPass | None) -> Floats:
        """The model's input instead of the canvas's ids, shape (L, H)."""
        rows = self._table.rows(ids)
        embedded = rows * embedding_scale(rows.shape[1])
        if last is None or last.length != len(ids):
            return self._network.condition(embedded, None)
        return self._feedback.condition(embedded, last.record)

    def _predict_rows(
        self, slot: int, canvases: Sequence[Floats], temperature: float, rng: np.random.Generator
    ) -> list[Prediction]:
        """Predicts all positions of canvases that are embeddings of shape (L, H)."""
        lengths = [len(rows) for rows in canvases]
        content = np.concatenate(canvases)
        if not np.isfinite(content).all():
            raise BackendError("self-conditioning computed no numbers; the model's file may be damaged")

        def put(positions: TokenIds, sequences: TokenIds) -> None:
            self._context.batch.put_rows(content, positions, sequences)

        reduced = self._step(slot, lengths, len(content), put, temperature, rng)
        stops = np.cumsum(lengths).tolist()
        return [take(reduced, slice(stop - size, stop)) for size, stop in zip(lengths, stops, strict=True)]

    def _recorded(self, predictions: Sequence[Prediction], lanes: Sequence[int]) -> dict[int, _LastPass]:
        """Records the last pass by lane; only before the next pass."""
        lengths = [len(prediction.entropy) for prediction in predictions]
        stops = np.cumsum(lengths).tolist()
        weights = self._reducer.weights(stops[-1])
        return {
            lane: _LastPass(self._feedback.record(weights[stop - size : stop], prediction), size)
            for lane, prediction, size, stop in zip(lanes, predictions, lengths, stops, strict=True)
        }
