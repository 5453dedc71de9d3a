"""The denoiser of DiffusionGemma, which reads embeddings that include its last prediction of the canvas."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from dg_lsp import gguf
from dg_lsp.backends.llamacpp.denoiser import LlamaDenoiser
from dg_lsp.backends.llamacpp.device_graph import GPU_KINDS
from dg_lsp.backends.llamacpp.diffusiongemma.device_reduction import (
    REDUCTION_ARRAYS,
    Decode,
    GraphReduction,
    HostReduction,
    Mode,
    choose_reduction,
    functions,
)
from dg_lsp.backends.llamacpp.diffusiongemma.self_conditioning import (
    MASS,
    DeviceFeedback,
    EmbeddingTable,
    SelfConditioning,
    choose_feedback,
)
from dg_lsp.backends.llamacpp.library import gpus
from dg_lsp.backends.llamacpp.model import LlamaModel
from dg_lsp.backends.llamacpp.reduction import take
from dg_lsp.backends.threads import physical_cores
from dg_lsp.canvas.layout import TokenIds
from dg_lsp.canvas.spec import ModelSpec
from dg_lsp.diffusion.denoiser import WHOLE_PROMPT, Allowed, Floats, Footprint, Lanes, Prediction, check_temperature
from dg_lsp.errors import BackendError, ModelUnsupportedError, RequestError
from dg_lsp.settings import ModelSettings

_log = logging.getLogger(__name__)
_TRIED_TOKENS = 16
"""Length of the canvas that is reduced at load, on a CPU; on a GPU the longest, so that its memory is known to do."""
_FLAT, _SURE = 1.0, 0.05
"""Temperatures of these steps: measured is one of flat positions; the host needs few embeddings of sure ones."""
_MAX_DECODERS = 8
"""Threads that decode embeddings; fewer already use the full memory bandwidth."""


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
        reduction: Mode | None = None,
    ) -> None:
        """Reads the side file, makes the context and measures the threads. See `LlamaDenoiser`.

        The host feeds back the probability `mass`; 1 is exact, and slow with a large vocabulary. If the model is on a
        GPU, a device of one of these `kinds` may do it instead. Logits are reduced where it is fastest, or where
        `reduction` asks for it.
        """
        if spec.self_conditioning is None:
            raise ModelUnsupportedError(f"{model.path} has no self-conditioning; open it with LlamaDenoiser")
        width = model.embedding_length
        epsilon = float(model.metadata[f"{model.metadata['general.architecture']}.attention.layer_norm_rms_epsilon"])
        self._network = SelfConditioning.open(model.path, spec.self_conditioning, width, epsilon)
        super().__init__(model, spec, settings)
        decoders = min(physical_cores(), _MAX_DECODERS) if model.on_gpu else self.threads
        self._table = EmbeddingTable(gguf.read_header(model.path), spec.vocab_size, width, threads=decoders)
        self._feedback = choose_feedback(
            self._table,
            self._network,
            mass=mass,
            kinds=kinds if model.on_gpu else (),
            number=self._logits_gpu,
            needed_bytes=self._reduction_bytes,
        )
        self._records: dict[int, dict[int, Any]] = {}
        """See `HostFeedback.record`; of the last pass, by slot, then lane."""
        self._host = HostReduction(self._context, self._reducer, self._feedback)
        self._reduction = self._choose_reduction(reduction)

    @property
    def _logits_gpu(self) -> int:
        """Index into `gpus()` of the one with the last layers."""
        return max(self._model.placement.gpus, default=0)

    @property
    def _reduction_bytes(self) -> int:
        """Memory of `Mode.OPS` for the largest step."""
        return REDUCTION_ARRAYS * 4 * self._budget.canvas_tokens * self.spec.vocab_size

    def prefill(self, slot: int, prompt_ids: TokenIds, most: int = WHOLE_PROMPT) -> int:
        """See `Denoiser.prefill`; forgets the slot's predictions."""
        self._records.pop(slot, None)
        return super().prefill(slot, prompt_ids, most)

    def extend(self, slot: int, ids: TokenIds, allowed: Allowed | None = None) -> Prediction:
        """See `Denoiser.extend`; forgets the slot's predictions."""
        self._records.pop(slot, None)
        return super().extend(slot, ids, allowed)

    def close(self) -> None:
        """Frees everything. Idempotent."""
        self._feedback.close()
        self._table.close()
        super().close()

    def predict(
        self, slot: int, canvases: Sequence[TokenIds], temperature: float, rng: np.random.Generator, lanes: Lanes = ()
    ) -> list[Prediction]:
        """See `Denoiser.predict`. Predicts all positions; the lanes must be one for each canvas."""
        check_temperature(temperature)
        checked = self._checked_canvases(slot, canvases)
        chosen = list(lanes) or list(range(len(checked)))
        if len(chosen) != len(checked) or len({*chosen}) != len(chosen):
            raise RequestError(f"{len(checked)} canvases need as many different lanes, not {chosen}")
        last, lengths = self._records.get(slot, {}), [len(canvas) for canvas in checked]
        rows = [self._input_rows(ids, last.get(lane)) for ids, lane in zip(checked, chosen, strict=True)]
        content = rows[0] if len(rows) == 1 else np.concatenate(rows)
        if not np.isfinite(content).all():
            raise BackendError("self-conditioning computed no numbers; the model's file may be damaged")
        decode = partial(self._decode_canvases, slot, content, lengths)
        reduced = self._reduce(decode, len(content), temperature, rng)
        parts = [slice(stop - size, stop) for size, stop in zip(lengths, np.cumsum(lengths).tolist(), strict=True)]
        predictions = [take(reduced, part) for part in parts]
        records = map(self._reduction.record, parts, predictions)
        self._records[slot] = {**last, **dict(zip(chosen, records, strict=True))}
        return predictions

    def _reduce(self, decode: Decode, num_rows: int, temperature: float, rng: np.random.Generator) -> Prediction:
        """A decode and its predictions. If the device fails, the host is used from then on."""
        try:
            return self._reduction.reduce(decode, num_rows, temperature, rng)
        except BackendError as error:
            if self._reduction is self._host:
                raise
            _log.warning("logits are reduced on the host from now on: %s", error)
            self._reduction = self._host
        return self._reduction.reduce(decode, num_rows, temperature, rng)

    def _input_rows(self, ids: TokenIds, record: Any) -> Floats:
        """The model's input instead of the canvas's ids, shape (L, H)."""
        embedded = self._table.rows(ids)
        embedded *= self._table.scale
        if record is None or len(record) != len(ids):
            return self._network.condition(embedded, None)
        return self._feedback.condition(embedded, record)

    @property
    def footprint(self) -> Footprint:
        """See `Denoiser.footprint`."""
        shared, feedback = super().footprint, self._feedback
        more = feedback.size_bytes if isinstance(feedback, DeviceFeedback) else 0
        sampling = "host" if self._reduction is self._host else "device"
        return replace(shared, sampling=sampling, gpu_estimate=shared.gpu_estimate + more)

    def _has_gpu_room(self) -> bool:
        """Whether the model's GPU has memory for `Mode.OPS`, as far as its driver reports it."""
        if not self._model.on_gpu:
            return False
        free = [device.memory_free for device in gpus()[self._logits_gpu :][:1]]
        return not 0 < min(free, default=0) < self._reduction_bytes

    def _choose_reduction(self, mode: Mode | None) -> HostReduction:
        """The reduction of this mode; None measures a step with each that the device may have."""
        on_gpu, limit = self._model.on_gpu, self._budget.canvas_tokens
        modes = (mode,) if mode is not None else (Mode.OPS, Mode.ROWS) if self._has_gpu_room() else (Mode.ROWS,)
        parts = (self._context, self._reducer, self._feedback, self.spec)
        found = [GraphReduction(*parts, each) for each in modes if each is not Mode.HOST and functions() is not None]
        if mode is not None or not found:
            return found[0] if found else self._host
        length = limit if on_gpu else min(limit, _TRIED_TOKENS)
        ids = np.arange(length, dtype=np.int32) % np.int32(self.spec.vocab_size)
        decode = partial(self._decode_canvases, 0, self._input_rows(ids, None), [length])

        def run(reduction: HostReduction, temperature: float) -> tuple[Prediction, Any]:
            prediction = reduction.reduce(decode, length, temperature, np.random.default_rng(0))
            return prediction, reduction.record(slice(0, length), prediction)

        return choose_reduction(
            self._host,
            found,
            step=lambda reduction: run(reduction, _FLAT)[0],
            next_input=lambda reduction: self._input_rows(ids, run(reduction, _SURE)[1]),
        )
