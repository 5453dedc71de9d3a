"""Denoisers over a llama.cpp context: what all of them share, and the one with a causal prompt in the KV cache."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from dg_lsp.backends.llamacpp.context import LlamaContext
from dg_lsp.backends.llamacpp.kv_cache import NOTHING, KvCache
from dg_lsp.backends.llamacpp.library import gpus
from dg_lsp.backends.llamacpp.memory_estimate import MAX_CANVASES, context_budget, exact_budget
from dg_lsp.backends.llamacpp.model import LlamaModel, check_compatible
from dg_lsp.backends.llamacpp.reduce import Reducer, take
from dg_lsp.backends.llamacpp.threads import threads_for
from dg_lsp.canvas.layout import Flags, TokenIds, token_ids
from dg_lsp.canvas.spec import MaskSampling, ModelSpec
from dg_lsp.diffusion.denoiser import (
    DeviceMemory,
    Footprint,
    Prediction,
    check_prompt_length,
    check_slot,
    check_temperature,
    checked_canvases,
    checked_extension,
    checked_ids,
)
from dg_lsp.errors import BackendError, RequestError
from dg_lsp.settings import ModelSettings

OpenCanvas = tuple[TokenIds, Flags]
"""A canvas, and the positions that the model has to predict; shape (L,) each."""


class CanvasQuery:
    """The tokens of one pass over canvases, and which rows of its logits predict which positions."""

    def __init__(self, canvases: Sequence[OpenCanvas], ahead: TokenIds, *, is_shifted: bool) -> None:
        """Decodes the tokens `ahead`, shape (A,), again before each canvas."""
        self._canvases = canvases
        self.lengths = [len(ahead) + len(ids) for ids, _ in canvases]
        self._stops = np.cumsum([np.count_nonzero(flags) for _, flags in canvases]).tolist()
        self._places = None
        if not len(ahead) and not is_shifted:
            self.ids = np.concatenate([ids for ids, _ in canvases])
            self.outputs = np.concatenate([flags for _, flags in canvases])
            self.num_rows = self._stops[-1]
            return
        self.ids = np.concatenate([part for ids, _ in canvases for part in (ahead, ids)])
        """Shape (N,)."""
        starts = np.cumsum([0, *self.lengths[:-1]])
        rows = [
            # nothing precedes the first token of all: its own logits are used, as by the models' authors
            start + np.maximum(np.flatnonzero(flags) + len(ahead) - is_shifted, 0)
            for start, (_, flags) in zip(starts, canvases, strict=True)
        ]
        found, self._places = np.unique(np.concatenate(rows), return_inverse=True)
        self.outputs = np.zeros(len(self.ids), dtype=np.bool_)
        """Shape (N,): the tokens whose logits are needed."""
        self.outputs[found] = True
        self.num_rows = len(found)

    def predictions(self, reduced: Prediction) -> list[Prediction]:
        """One for each canvas, from the reduced logits of `outputs`."""
        if self._places is not None:
            reduced = take(reduced, self._places)
        rows = (slice(start, stop) for start, stop in zip([0, *self._stops], self._stops, strict=False))
        return [_merged(ids, flags, reduced, part) for (ids, flags), part in zip(self._canvases, rows, strict=True)]


def _merged(canvas: TokenIds, flags: Flags, reduced: Prediction, rows: slice) -> Prediction:
    """The canvas's own tokens, and the model's at the open positions."""
    found = take(reduced, rows)
    if rows.stop - rows.start == len(canvas):
        return found
    prediction = _settled(canvas)
    prediction.argmax_ids[flags] = found.argmax_ids
    prediction.sampled_ids[flags] = found.sampled_ids
    prediction.confidence[flags] = found.confidence
    prediction.entropy[flags] = found.entropy
    if found.unexpanded_ids is None or found.unexpanded_confidence is None:
        return prediction
    ids, confidence = canvas.copy(), np.ones(len(canvas), dtype=np.float32)
    ids[flags], confidence[flags] = found.unexpanded_ids, found.unexpanded_confidence
    return replace(prediction, unexpanded_ids=ids, unexpanded_confidence=confidence)


def _settled(canvas: TokenIds) -> Prediction:
    """Every position predicts its own token."""
    ones, zeros = np.ones(len(canvas), dtype=np.float32), np.zeros(len(canvas), dtype=np.float32)
    return Prediction(canvas.copy(), canvas.copy(), ones, zeros)


_FLASH_FROM = 64
"""Canvas length from which llama.cpp's flash attention gains on a CPU; shorter canvases lose 15 to 35 %."""


class ContextDenoiser(ABC):
    """The common part of all denoisers over a llama.cpp context.

    Only for the thread that loaded the model; owns and closes it. Refuses what would make ggml abort the process: a
    canvas beyond the physical batch, an id outside the vocabulary, a position beyond the context.
    """

    _is_cached: ClassVar[bool] = True
    """Whether the prompt stays in the KV cache; otherwise every step computes it."""

    def __init__(self, model: LlamaModel, spec: ModelSpec, settings: ModelSettings) -> None:
        """Makes the context and measures the threads.

        Raises:
            ModelUnsupportedError: spec and model do not fit, or llama.cpp cannot run the model this way.
            ModelMemoryError: there is not enough memory.
        """
        check_compatible(spec, model, needs_cache=self._is_cached)
        self.spec = spec
        self.num_slots = settings.num_slots
        self.tokenizer = model.tokenizer
        self._model = model
        self._budget = (context_budget if self._is_cached else exact_budget)(spec, settings, model.sizes)
        flash = model.on_gpu or (self._is_cached and min(spec.canvas_lengths, default=1) >= _FLASH_FROM)
        self._context = LlamaContext(model, self._budget, flash_attention=flash)
        self._reducer = Reducer.of(spec)
        self.threads = threads_for(settings.threads, self._run_step, on_gpu=model.on_gpu)
        """CPU threads of a step."""
        self._context.set_threads(self.threads)

    @property
    def footprint(self) -> Footprint:
        """See `Denoiser.footprint`."""
        model, num_cells = self._model, self._context.num_cells
        used = gpus() if model.on_gpu else ()
        return Footprint(
            weights_bytes=model.weights.gpu + model.weights.host,
            cache_bytes=num_cells * model.sizes.kv_bytes_per_token if model.has_cache else 0,
            cache_cells=num_cells,
            cache_limit=self._budget.context_length,
            cache_used=self._num_used(),
            devices=tuple(DeviceMemory(device.name, device.memory_free, device.memory_total) for device in used),
        )

    @abstractmethod
    def prefill(self, slot: int, prompt_ids: TokenIds) -> int:
        """See `Denoiser.prefill`."""

    def predict(
        self,
        slot: int,
        canvases: Sequence[TokenIds],
        temperature: float,
        rng: np.random.Generator,
        lanes: Sequence[int] = (),
    ) -> list[Prediction]:
        """See `Denoiser.predict`."""
        del lanes  # no state of a canvas is kept
        check_temperature(temperature)
        checked = self._checked_canvases(slot, canvases)
        flags = [self._open_positions(canvas) for canvas in checked]
        counts = [np.count_nonzero(each) for each in flags]
        opened = [(canvas, each) for canvas, each, count in zip(checked, flags, counts, strict=True) if count]
        found = iter(self._predict_open(slot, opened, temperature, rng) if opened else ())
        return [next(found) if count else _settled(canvas) for canvas, count in zip(checked, counts, strict=True)]

    def extend(self, slot: int, ids: TokenIds) -> Prediction:
        """See `Denoiser.extend`; not possible with a bidirectional prompt.

        Raises:
            BackendError: always.
        """
        del slot, ids
        raise BackendError(f"{self.spec.name} has no causal head; use the decoder diffusion")

    def close(self) -> None:
        """Frees context and model. Idempotent."""
        self._context.close()
        self._model.close()

    @abstractmethod
    def _checked_canvases(self, slot: int, canvases: Sequence[TokenIds]) -> list[TokenIds]:
        """Refuses canvases that do not fit."""

    @abstractmethod
    def _predict_open(
        self, slot: int, canvases: Sequence[OpenCanvas], temperature: float, rng: np.random.Generator
    ) -> list[Prediction]:
        """Predicts canvases that have an open position."""

    def _num_used(self) -> int:
        """Cells in use for prompts."""
        return 0

    def _open_positions(self, canvas: TokenIds) -> Flags:
        """Masks, or for uniform noise all positions."""
        if isinstance(self.spec.sampling, MaskSampling):
            return canvas == self.spec.sampling.mask_id
        return np.ones(len(canvas), dtype=np.bool_)

    def _checked_prompt(self, slot: int, prompt_ids: TokenIds) -> TokenIds:
        check_slot(slot, self.num_slots)
        wanted = token_ids(checked_ids("prompt", prompt_ids, self.spec.vocab_size))
        check_prompt_length(len(wanted), self._budget.prompt_limit)
        return wanted

    def _reduced(self, num_rows: int, temperature: float, rng: np.random.Generator) -> Prediction:
        """The last batch's logits."""
        return self._reducer.reduce(self._context.logits(num_rows), temperature, rng)

    def _run_step(self, threads: int) -> None:
        """A short step for the measurement of threads."""
        positions = np.arange(min(16, self._budget.canvas_tokens), dtype=np.int32)
        self._context.set_threads(threads)
        self._context.batch.put_tokens(np.zeros_like(positions), positions, 0, 1)
        self._context.decode(causal=False)
        if self._model.has_cache:
            self._context.crop(0, 0)


_PREFILL_TOKENS = 128
"""Prompt tokens of a batch on a CPU. In a larger batch, every token would attend to the cells of the last one."""


class LlamaDenoiser(ContextDenoiser):
    """See `Denoiser`. The prompt is causal and stays in the KV cache; canvases follow it bidirectionally."""

    def __init__(self, model: LlamaModel, spec: ModelSpec, settings: ModelSettings) -> None:
        super().__init__(model, spec, settings)
        capacity = self._context.batch.capacity
        self._cache = KvCache(
            self._context, prefill_tokens=capacity if model.on_gpu else min(capacity, _PREFILL_TOKENS)
        )
        self._greedy = np.random.default_rng(0)  # draws nothing at temperature 0

    def prefill(self, slot: int, prompt_ids: TokenIds) -> int:
        """See `Denoiser.prefill`."""
        return self._cache.prefill(slot, self._checked_prompt(slot, prompt_ids))

    def extend(self, slot: int, ids: TokenIds) -> Prediction:
        """See `Denoiser.extend`."""
        if self.spec.is_bidirectional:
            return super().extend(slot, ids)
        check_slot(slot, self.num_slots)
        new = checked_extension(ids, self.spec.vocab_size, self._budget.canvas_tokens)
        count = len(new)
        self._check_room(slot, [count])
        old = self._cache.ids(slot)
        try:
            self._cache.make_room(slot, count)
            positions = np.arange(len(old), len(old) + count, dtype=np.int32)
            self._context.batch.put_tokens(new, positions, slot, 1)
            self._cache.decode(slot, causal=True)
            reduced = self._reduced(count, 0.0, self._greedy)
        except BackendError:
            self._cache.clear(slot)
            raise
        self._cache.set_ids(slot, token_ids(np.concatenate([old, new])))
        return reduced

    def _num_used(self) -> int:
        return self._cache.num_used

    def _ahead(self, slot: int) -> TokenIds:
        """The end of the prompt that is not in the cache; every step decodes it before each canvas."""
        del slot
        return NOTHING

    def _checked_canvases(self, slot: int, canvases: Sequence[TokenIds]) -> list[TokenIds]:
        num_ahead = len(self._ahead(slot))
        checked = checked_canvases(
            canvases,
            self.spec.vocab_size,
            max_canvases=MAX_CANVASES,
            max_canvas_tokens=self._budget.canvas_tokens - num_ahead * MAX_CANVASES,
        )
        self._check_room(slot, [num_ahead + len(canvas) for canvas in checked])
        return checked

    def _check_room(self, slot: int, lengths: Sequence[int]) -> None:
        check_slot(slot, self.num_slots)
        num_prompt = len(self._cache.ids(slot))
        limit, limit_of_all = self._budget.slot_limit, self._budget.context_length
        if num_prompt + max(lengths) > limit or num_prompt + sum(lengths) > limit_of_all:
            raise RequestError(
                f"a prompt of {num_prompt} tokens and canvases of {sum(lengths)} do not fit: a slot takes {limit}, "
                f"all slots together {limit_of_all}; raise context_length"
            )

    def _predict_open(
        self, slot: int, canvases: Sequence[OpenCanvas], temperature: float, rng: np.random.Generator
    ) -> list[Prediction]:
        query = CanvasQuery(canvases, self._ahead(slot), is_shifted=self.spec.is_shifted)

        def put(positions: TokenIds, sequences: TokenIds) -> None:
            self._context.batch.put_tokens(query.ids, positions, sequences, query.outputs)

        return query.predictions(self._step(slot, query.lengths, query.num_rows, put, temperature, rng))

    def _step(
        self,
        slot: int,
        lengths: Sequence[int],
        num_rows: int,
        put: Callable[[TokenIds, TokenIds], None],
        temperature: float,
        rng: np.random.Generator,
    ) -> Prediction:
        """One non-causal decode of canvases, each in a sequence of its own that shares the cells of the prompt.

        `put(positions, sequences)` fills the batch, which has `num_rows` rows of logits.
        """
        self._cache.make_room(slot, sum(lengths))
        context, prompt = self._context, self._cache.ids(slot)
        branches = range(self.num_slots, self.num_slots + len(lengths) - 1)
        offsets = np.concatenate([np.arange(size, dtype=np.int32) for size in lengths])
        sequences = np.repeat(np.array([slot, *branches], dtype=np.int32), lengths)
        put(offsets + np.int32(len(prompt)), sequences)
        try:
            for branch in branches:
                context.share(slot, branch)
            self._cache.decode(slot, causal=False)
            return self._reduced(num_rows, temperature, rng)
        finally:
            for branch in branches:
                context.crop(branch, 0)
            context.crop(slot, len(prompt))
            self._cache.set_ids(slot, prompt)
