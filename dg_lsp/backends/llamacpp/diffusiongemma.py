"""DiffusionGemma: the denoiser, and the check whether the loaded llama.cpp computes this model's attention.

The model reads embeddings that include its last prediction of the canvas. The check runs tiny models made for it:
`python -m dg_lsp.backends.llamacpp.diffusiongemma` exits with 0 for yes and 10 for no.
"""

import contextlib
import functools
import logging
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dg_lsp import gguf
from dg_lsp.backends.llamacpp.context import LlamaContext
from dg_lsp.backends.llamacpp.denoiser import LlamaDenoiser
from dg_lsp.backends.llamacpp.device_feedback import GPU_KINDS, DeviceFeedback, choose_feedback
from dg_lsp.backends.llamacpp.device_reduction import (
    REDUCTION_ARRAYS,
    Decode,
    GraphReduction,
    HostReduction,
    Mode,
    Reduction,
    choose_reduction,
    functions,
)
from dg_lsp.backends.llamacpp.errors import decode_error
from dg_lsp.backends.llamacpp.library import gpus, library
from dg_lsp.backends.llamacpp.memory_estimate import ContextBudget
from dg_lsp.backends.llamacpp.model import LlamaModel
from dg_lsp.backends.llamacpp.reduction import take
from dg_lsp.backends.llamacpp.self_conditioning import MASS, EmbeddingTable, SelfConditioning
from dg_lsp.backends.threads import physical_cores
from dg_lsp.canvas.layout import TokenIds
from dg_lsp.canvas.spec import ModelSpec
from dg_lsp.diffusion.denoiser import WHOLE_PROMPT, Allowed, Floats, Footprint, Lanes, Prediction, check_temperature
from dg_lsp.errors import BackendError, ModelError, ModelRuntimeError, ModelUnsupportedError, RequestError
from dg_lsp.runtime import COMMAND, STOCK, VARIABLE
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

    def _choose_reduction(self, mode: Mode | None) -> Reduction:
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

        def run(reduction: Reduction, temperature: float) -> tuple[Prediction, Any]:
            prediction = reduction.reduce(decode, length, temperature, np.random.default_rng(0))
            return prediction, reduction.record(slice(0, length), prediction)

        return choose_reduction(
            self._host,
            found,
            step=lambda reduction: run(reduction, _FLAT)[0],
            next_input=lambda reduction: self._input_rows(ids, run(reduction, _SURE)[1]),
        )


NO = 10
_WIDTH, _VOCABULARY = 32, 4
_WINDOW = 2
"""Window of the sliding layer: a token attends to itself and the one before it."""
_SLIDING, _FULL = 0, 1  # the two layers
_BUDGET = ContextBudget(256, 256, 256, 256, 16, 1, 240)
_SETTINGS = ModelSettings(threads=1, gpu_layers=0)
_NOISE = 1e-3
"""Logits differ by more than 0.1 if a token attends to the one that changed."""


def require_runtime(path: Path) -> None:
    """Raises `ModelRuntimeError` if this llama.cpp would compute the DiffusionGemma in `path` wrongly."""
    if supports_bidirectional():
        return
    note = f" ({library().note})" if library().note else ""
    problem = f"is a DiffusionGemma, and llama.cpp as installed computes it wrongly{note}"
    raise ModelRuntimeError(f"{path} {problem}; run: {COMMAND}")


@functools.cache
def supports_bidirectional() -> bool:
    """Whether non-causal attention of arch `gemma4` is complete. Takes about 20 ms, once.

    In full layers a token must attend to later ones; in sliding layers the whole canvas must attend to the part of the
    prompt that its first token attends to.
    """
    ahead = _logits(_FULL, prompt=(), canvas=(1, 2))[0] - _logits(_FULL, prompt=(), canvas=(1, 3))[0]
    behind = _logits(_SLIDING, prompt=(1,), canvas=(2, 2))[1] - _logits(_SLIDING, prompt=(3,), canvas=(2, 2))[1]
    return bool(min(np.abs(ahead).max(), np.abs(behind).max()) > _NOISE)


def _logits(layer: int, *, prompt: Sequence[int], canvas: Sequence[int]) -> Floats:
    """Logits of a canvas after a prompt if only one layer has attention."""
    with contextlib.ExitStack() as stack:
        try:
            with tempfile.TemporaryDirectory(prefix="dg-lsp-check-", ignore_cleanup_errors=True) as name:
                path = Path(name) / "check.gguf"
                with path.open("wb") as file:
                    gguf.write_gguf(file, _metadata(), list(_tensors(layer)))
                model = stack.enter_context(contextlib.closing(LlamaModel.load(path, _SETTINGS)))
            context = stack.enter_context(contextlib.closing(LlamaContext(model, _BUDGET, flash_attention=False)))
        except ModelError as error:
            raise BackendError("llama.cpp cannot run a Gemma 4 model; update llama-cpp-python") from error
        start = 0
        for ids, is_causal in ((prompt, True), (canvas, False)):
            context.batch.put(np.array(ids, np.int32), np.arange(start, start + len(ids), dtype=np.int32), 0)
            if ids and (status := context.decode(causal=is_causal)):
                raise decode_error(status)
            start += len(ids)
        return context.logits(len(canvas)).copy()


def _metadata() -> dict[str, gguf.Value]:
    heads = (f"attention.{part}_length{kind}" for part in ("key", "value") for kind in ("", "_swa"))
    widths = ("embedding_length", "feed_forward_length", "rope.dimension_count", "rope.dimension_count_swa", *heads)
    numbers = {
        **dict.fromkeys(widths, _WIDTH),
        **dict.fromkeys(("attention.head_count", "attention.head_count_kv"), 1),
        **dict.fromkeys(("attention.shared_kv_layers", "embedding_length_per_layer_input"), 0),
        "context_length": 256,
        "block_count": 2,
        "attention.sliding_window": _WINDOW,
    }
    reals = {"attention.layer_norm_rms_epsilon": 1e-6, "rope.freq_base": 1e6, "rope.freq_base_swa": 1e4}
    return {
        "general.architecture": gguf.text("gemma4"),
        "tokenizer.ggml.model": gguf.text("gpt2"),
        "tokenizer.ggml.tokens": gguf.texts("abcd"),
        "tokenizer.ggml.merges": gguf.texts(["a b"]),
        "gemma4.attention.sliding_window_pattern": gguf.flags([True, False]),
        **{f"gemma4.{key}": gguf.uint32(value) for key, value in numbers.items()},
        **{f"gemma4.{key}": gguf.float32(value) for key, value in reals.items()},
    }


def _tensors(attending: int) -> Iterator[gguf.Tensor]:
    """Weights of both layers; the attention of the other layer adds nothing."""
    matrices = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    rows = ("attn_norm", "attn_q_norm", "attn_k_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
    blocks = [f"blk.{layer}" for layer in (_SLIDING, _FULL)]
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd": (_VOCABULARY, _WIDTH),
        "rope_freqs": (_WIDTH // 2,),
        "output_norm": (_WIDTH,),
        **{f"{block}.{name}": (_WIDTH, _WIDTH) for block in blocks for name in matrices},
        **{f"{block}.{name}": (_WIDTH,) for block in blocks for name in rows},
    }
    rng = np.random.default_rng(0)
    for name, shape in shapes.items():
        values = rng.standard_normal(shape) / 4 if len(shape) > 1 else np.ones(shape)
        is_silent = name == f"blk.{1 - attending}.attn_output"
        yield gguf.vector(f"{name}.weight", (0 * values if is_silent else values).astype(np.float32))


def main() -> None:
    """Exits with the answer, or with a message if the environment names a runtime that cannot be loaded."""
    if os.environ.get(VARIABLE, STOCK) != STOCK and library().runtime is None:
        sys.exit(library().note)
    sys.exit(0 if supports_bidirectional() else NO)


if __name__ == "__main__":
    main()
