"""The denoiser of DiffusionGemma, which reads embeddings that include its last prediction of the canvas."""

import logging
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from typing_extensions import override

from dg_lsp import gguf
from dg_lsp.backends.llamacpp.denoiser import LlamaDenoiser
from dg_lsp.backends.llamacpp.diffusiongemma.device_reduction import (
    NUM_FACTS,
    REDUCTION_ARRAYS,
    ChainStep,
    GraphReduction,
    agrees,
)
from dg_lsp.backends.llamacpp.diffusiongemma.self_conditioning import (
    MASS,
    DeviceFeedback,
    EmbeddingTable,
    HostFeedback,
    SelfConditioning,
)
from dg_lsp.backends.llamacpp.library import Device
from dg_lsp.backends.llamacpp.model import LlamaModel
from dg_lsp.backends.llamacpp.reduction import NEVER, take
from dg_lsp.backends.threads import physical_cores
from dg_lsp.canvas.layout import TokenIds, noise
from dg_lsp.canvas.spec import ModelSpec, UniformSampling
from dg_lsp.diffusion.denoiser import WHOLE_PROMPT, Allowed, Canvases, Floats, Footprint, Lanes, Prediction, Rng, TopK
from dg_lsp.diffusion.samplers import Step, temperature
from dg_lsp.errors import BackendError
from dg_lsp.settings import ModelSettings

_log = logging.getLogger(__name__)
_FLAT, _SURE = 1.0, 0.05
"""Temperatures of the steps that compare a device with the host: of flat positions, and of sure ones."""
_KEPT_PASSES = 2
"""Passes over canvases of a prompt whose predictions a device keeps: the steps, and the scores of the joins."""
MAX_CHAIN = 16
"""Steps of a chain: their numbers stay on the device until the host reads them."""
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
        device: Device | None = None,
    ) -> None:
        """Reads the side file, makes the context and measures the threads. See `LlamaDenoiser`.

        The host feeds back the probability `mass`; 1 is exact, and slow with a large vocabulary. Where there is one,
        the GPU with the last layers or another `device` does it instead, if it has room and agrees with the host.
        """
        assert spec.self_conditioning is not None  # see `denoiser_for`
        width = model.embedding_length
        epsilon = float(model.metadata[f"{model.metadata['general.architecture']}.attention.layer_norm_rms_epsilon"])
        self._network = SelfConditioning(model.path, spec.self_conditioning, width, epsilon)
        # embeddings in half precision, and the arrays of a reduction of the longest canvas
        reserved = spec.vocab_size * (2 * width + 4 * REDUCTION_ARRAYS * spec.longest_block)
        super().__init__(model, spec, settings, reserved)
        decoders = min(physical_cores(), _MAX_DECODERS) if model.on_gpu else self.threads
        self._table = EmbeddingTable(gguf.read_header(model.path), spec.vocab_size, width, threads=decoders)
        self._records: dict[int, dict[int, Any]] = {}
        """See `GraphReduction.record`; of the last pass, by slot, then lane."""
        feedback = HostFeedback(self._table, self._network, mass)
        self._reduction = GraphReduction(self._context, feedback, spec)
        if device is not None or model.gpu_numbers:
            self._use_device(device or model.used_gpus[-1])

    def _use_device(self, device: Device) -> None:
        """Sums and reduces on a device, if it has room and computes what the host computes."""
        length = self._budget.canvas_tokens  # the longest, so that its memory is known to be enough
        needed_bytes = REDUCTION_ARRAYS * 4 * length * self.spec.vocab_size
        num_rows = _KEPT_PASSES * self.num_slots * length
        bias: Floats = np.zeros(self.spec.vocab_size, dtype=np.float32)
        bias[list(self.spec.banned_ids)] = NEVER
        host = self._reduction
        try:
            history = (MAX_CHAIN * length, NUM_FACTS)
            feedback = DeviceFeedback(device, self._table, self._network, bias, num_rows, history, needed_bytes)
            self._reduction = GraphReduction(self._context, feedback, self.spec)
            for temperature in (_FLAT, _SURE):
                self._check_device(host.feedback, length, temperature)
        except BackendError as error:
            _log.warning("self-conditioning runs on the host: %s", error)
            self._reduction.feedback.close()
            self._reduction = host

    def _check_device(self, host: Any, length: int, temperature: float) -> None:
        """Compares two steps over a canvas with what the host computes from their logits.

        Raises:
            BackendError: the device computes something else.
        """
        ids = np.arange(length, dtype=np.int32) % np.int32(self.spec.vocab_size)
        rows = slice(0, length)
        reduction = self._reduction
        record = None
        for _ in range(2):
            expected_record = None if record is None else reduction.mixture(rows, host.mass)
            decode = partial(self._decode_canvases, 0, reduction.feedback.inputs([ids], [record]), [length])
            prediction = reduction.reduce(decode, length, temperature, np.random.default_rng(0))
            inputs = reduction.layer_inputs(length, self._model.embedding_length)
            expected_inputs = host.inputs([ids], [expected_record])
            record = reduction.record(rows)
            expected = self._reducer.reduce(reduction.logits(range(length)), temperature, np.random.default_rng(0))
            if not agrees((prediction, inputs), (expected, expected_inputs)):
                raise BackendError("the device computes another step than the host")

    @override
    def prefill(self, slot: int, prompt_ids: TokenIds, most: int = WHOLE_PROMPT) -> int:
        """Forgets the slot's predictions."""
        self._records.pop(slot, None)
        return super().prefill(slot, prompt_ids, most)

    @override
    def extend(self, slot: int, ids: TokenIds, allowed: Allowed | None = None) -> Prediction:
        """Forgets the slot's predictions."""
        self._records.pop(slot, None)
        return super().extend(slot, ids, allowed)

    @override
    def close(self) -> None:
        self._reduction.feedback.close()
        self._table.close()
        super().close()

    @override
    def predict(
        self, slot: int, canvases: Canvases, temperature: float, rng: Rng, lanes: Lanes = (), top_k: TopK | None = None
    ) -> list[Prediction]:
        """Predicts all positions, frozen ones included."""
        checked = self._checked_canvases(slot, canvases)
        chosen = list(lanes) or list(range(len(checked)))
        lengths = [len(canvas) for canvas in checked]
        content = self._inputs(slot, checked, chosen)
        decode = partial(self._decode_canvases, slot, content, lengths)
        reduced = self._reduction.reduce(decode, len(content), temperature, rng, top_k)
        parts = [slice(stop - size, stop) for size, stop in zip(lengths, np.cumsum(lengths).tolist(), strict=True)]
        self._records[slot].update(zip(chosen, map(self._reduction.record, parts), strict=True))
        return [take(reduced, part) for part in parts]

    def _inputs(self, slot: int, canvases: Canvases, lanes: Lanes) -> TokenIds | Floats:
        """What the model reads of canvases, whose records it takes out of those of the slot."""
        last = self._records.get(slot, {})
        records = [last.get(lane) for lane in lanes]
        usable = [
            record if record is not None and len(record) == len(canvas) else None
            for record, canvas in zip(records, canvases, strict=True)
        ]
        self._records[slot] = {lane: record for lane, record in last.items() if lane not in lanes}
        held = [record for by_lane in self._records.values() for record in by_lane.values()]
        return self._reduction.feedback.inputs(canvases, usable, held)

    @override
    def predict_chain(
        self, slot: int, step: Step, sampling: UniformSampling, rng: Rng, lane: int
    ) -> list[tuple[Prediction, TokenIds]]:
        if sampling.top_k or sampling.top_k_start or not isinstance(self._reduction.feedback, DeviceFeedback):
            return []
        checked = self._checked_canvases(slot, [step.canvas_ids])
        length = len(step.canvas_ids)
        count = min(sampling.stop_interval, sampling.max_denoising_steps - step.number)
        heats = [temperature(sampling, step.number + number) for number in range(1, count + 1)]
        noises: list[TokenIds] = []
        for number, heat in enumerate(heats):
            uniforms = rng.random(length).astype(np.float32)
            noises.append(noise(self.spec, length, rng))
            decode = partial(self._decode_canvases, slot, self._inputs(slot, checked, [lane]), [length])
            chain = ChainStep(number, step.frozen, noises[-1], sampling.entropy_bound)
            self._reduction.compute(decode, heat, uniforms, chain=chain)
            self._records[slot][lane] = self._reduction.record(slice(0, length))
        return list(zip(self._reduction.history(length, heats), noises, strict=True))

    @property
    @override
    def footprint(self) -> Footprint:
        shared = super().footprint
        feedback = self._reduction.feedback
        if not isinstance(feedback, DeviceFeedback):
            return shared
        return replace(shared, gpu_estimate=shared.gpu_estimate + feedback.size_bytes)
