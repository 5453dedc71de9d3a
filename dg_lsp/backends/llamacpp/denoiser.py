"""The usual denoiser over a llama.cpp context, with a causal prompt in the KV cache.

`masked` and `diffusiongemma` have the others.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar

import numpy as np
from typing_extensions import override

from dg_lsp.backends.llamacpp.context import KvCache, LlamaContext
from dg_lsp.backends.llamacpp.memory_estimate import (
    ADVICE,
    MAX_CANVASES,
    ContextBudget,
    MemoryEstimate,
    check_fits,
    context_budget,
    estimate_context,
    exact_budget,
)
from dg_lsp.backends.llamacpp.model import LlamaModel
from dg_lsp.backends.llamacpp.reduction import Reducer, join, take
from dg_lsp.backends.threads import threads_for
from dg_lsp.canvas.layout import NOTHING, Flags, TokenIds, checked_canvases, checked_extension, checked_prompt, concat
from dg_lsp.canvas.spec import FimOrder, MaskSampling, ModelSpec
from dg_lsp.diffusion.denoiser import (
    WHOLE_PROMPT,
    Allowed,
    Canvases,
    Denoiser,
    DeviceMemory,
    Floats,
    Footprint,
    Lanes,
    Prediction,
    Rng,
    TopK,
)
from dg_lsp.errors import BackendError, ModelMemoryError, ModelUnsupportedError, RequestError
from dg_lsp.settings import ModelSettings

_log = logging.getLogger(__name__)

OpenCanvas = tuple[TokenIds, Flags]
"""A canvas, and the positions that the model has to predict, at least one; shape (L,) each."""
Reduce = Callable[[Floats], Prediction]
"""`Reducer.reduce` with the temperature and the random numbers of a step."""


class CanvasQuery:
    """The tokens of one pass over canvases, and which rows of its logits predict their open positions."""

    def __init__(self, canvases: Sequence[OpenCanvas], ahead: TokenIds, *, is_shifted: bool) -> None:
        """Decodes the tokens `ahead`, shape (A,), again before each canvas."""
        self.lengths = [len(ahead) + len(ids) for ids, _ in canvases]
        self.ids = np.concatenate([part for ids, _ in canvases for part in (ahead, ids)])
        """Shape (N,)."""
        starts = np.cumsum([0, *self.lengths[:-1]])
        rows = [
            # nothing precedes the first token of all: its own logits are used, as by the models' authors
            start + np.maximum(np.flatnonzero(flags) + len(ahead) - is_shifted, 0)
            for start, (_, flags) in zip(starts, canvases, strict=True)
        ]
        output_rows, self._places = np.unique(np.concatenate(rows), return_inverse=True)
        self.outputs = np.zeros(len(self.ids), dtype=np.bool_)
        """Shape (N,): the tokens whose logits are needed."""
        self.outputs[output_rows] = True

    def prediction(self, reduced: Prediction) -> Prediction:
        """Of the open positions of all canvases, from the reduced logits of `outputs`."""
        return take(reduced, self._places)


def _with_own_tokens(ids: TokenIds, flags: Flags, predicted: Prediction | None) -> Prediction:
    """The model's prediction at the open positions; every other position predicts its own token."""
    certain = np.ones(len(ids), dtype=np.float32)
    unexpanded = (ids, certain) if predicted is not None and predicted.unexpanded_ids is not None else ()
    own = Prediction(ids, ids, certain, np.zeros_like(certain), certain, *unexpanded)
    if predicted is None:
        return own
    rows = np.arange(len(ids))
    rows[flags] = len(ids) + np.arange(flags.sum())
    return take(join([own, predicted]), rows)


_FLASH_FROM = 64
"""Canvas length from which llama.cpp's flash attention gains on a CPU; shorter canvases lose 15 to 35 %."""


def fitting_budget(
    model: LlamaModel, spec: ModelSpec, settings: ModelSettings, *, flash: bool, reserved: int = 0
) -> ContextBudget:
    """A context whose slots may grow to a conversation; within the soft limit if there is no memory for that.

    All of it must fit beside `reserved` bytes on the GPU.
    """
    budget = context_budget(spec, settings, model.sizes, is_limited=False)
    share = model.gpu_share
    needed = estimate_context(model.sizes, budget, budget.context_length, gpu_share=share, flash=flash)
    needed = MemoryEstimate(needed.gpu + reserved if share else 0, needed.host)
    try:
        check_fits("a conversation", needed, ADVICE, gpus=model.used_gpus, mapped=model.mapped_bytes)
    except ModelMemoryError:
        return context_budget(spec, settings, model.sizes)
    return budget


_PREFILL_TOKENS = 128
"""Prompt tokens of a batch on a CPU. In a larger batch, every token would attend to the cells of the last one."""


class LlamaDenoiser(Denoiser):
    """See `Denoiser`. The prompt is causal and stays in the KV cache; canvases follow it bidirectionally.

    Only for the thread that loaded the model; owns and closes it. Refuses what would make ggml abort the process: a
    canvas beyond the physical batch, an id outside the vocabulary, a position beyond the context.
    """

    _is_cached: ClassVar[bool] = True  # whether the prompt stays in the KV cache; otherwise every step computes it

    def __init__(self, model: LlamaModel, spec: ModelSpec, settings: ModelSettings, reserved: int = 0) -> None:
        """Makes the context and measures the threads; raises `ModelUnsupportedError` or `ModelMemoryError`.

        A context for whole conversations leaves `reserved` bytes on the GPU free.
        """
        if self._is_cached and not model.has_cache:
            advice = "set its prompt_attention (model.sampler) to exact, or use another model"
            raise ModelUnsupportedError(f"llama.cpp has no KV cache for {model.path}; {advice}")
        self.spec = spec
        self.num_slots = settings.num_slots
        self.tokenizer = model.tokenizer
        self._model = model
        flash = model.on_gpu or (self._is_cached and min(spec.canvas_lengths, default=1) >= _FLASH_FROM)
        if self._is_cached:
            self._budget = fitting_budget(model, spec, settings, flash=flash, reserved=reserved)
        else:
            self._budget = exact_budget(spec, settings, model.sizes)
        self._context = LlamaContext(model, self._budget, flash_attention=flash)
        self.threads = threads_for(settings.threads, self._run_step, on_gpu=model.on_gpu)
        """CPU threads of a step."""
        self._context.set_threads(self.threads)
        expand_id = spec.sampling.expand_id if isinstance(spec.sampling, MaskSampling) else None
        self._reducer = Reducer(spec.banned_ids, expand_id, self.threads)
        self._greedy = np.random.default_rng(0)  # draws nothing at temperature 0
        capacity = self._context.batch.capacity
        fim = spec.fim
        movable = fim if fim and fim.order is FimOrder.PREFIX_FIRST and not spec.block_length else None
        if movable and not (model.can_move_keys and self._context.can_shift):
            _log.warning("%s decodes the suffix again at each typed character: its keys cannot be moved", spec.name)
            movable = None
        self.moves_suffix = movable is not None
        prefill_tokens = capacity if model.on_gpu else min(capacity, _PREFILL_TOKENS)
        self._cache = KvCache(self._context, prefill_tokens, movable, spec.block_length, is_alone=not model.on_gpu)

    @property
    @override
    def footprint(self) -> Footprint:
        model = self._model
        num_cells = self._context.num_cells
        return Footprint(
            weights_bytes=model.weights.gpu + model.weights.host,
            cache_bytes=num_cells * model.sizes.kv_bytes_per_token,
            cache_cells=num_cells,
            cache_limit=self._budget.context_length,
            cache_used=self._cache.num_used,
            context_size=self._budget.slot_limit,
            gpu_estimate=model.weights.gpu + self._context.gpu_estimate,
            devices=tuple(DeviceMemory(gpu.name, gpu.memory_free, gpu.memory_total) for gpu in model.used_gpus),
        )

    @override
    def close(self) -> None:
        self._model.close()

    def _run_step(self, threads: int) -> None:
        """A short step for the measurement of threads."""
        usual = 16 if self.spec.sampling else 4  # a canvas, or a typed word
        positions = np.arange(min(usual, self._budget.canvas_tokens), dtype=np.int32)
        self._context.set_threads(threads)
        self._context.batch.put(np.zeros_like(positions), positions, 0)
        self._context.decode(causal=False)
        self._context.crop(0, 0)

    def _checked_prompt(self, prompt_ids: TokenIds) -> TokenIds:
        return checked_prompt(prompt_ids, self.spec.vocab_size, self._budget.prompt_limit)

    @override
    def prefill(self, slot: int, prompt_ids: TokenIds, most: int = WHOLE_PROMPT) -> int:
        return self._cache.prefill(slot, self._checked_prompt(prompt_ids), most)

    @override
    def refresh(self, slot: int) -> int:
        return self._cache.refresh(slot)

    @override
    def extend(self, slot: int, ids: TokenIds, allowed: Allowed | None = None) -> Prediction:
        new = checked_extension(ids, self.spec.vocab_size, self._budget.canvas_tokens)
        self._check_room(slot, [len(new)])
        reduce = partial(self._reducer.reduce, temperature=0.0, rng=self._greedy, allowed=allowed)
        return self._append(slot, new, np.ones(len(new), np.bool_), reduce, causal=True)

    def _append(self, slot: int, ids: TokenIds, outputs: Flags, reduce: Reduce, *, causal: bool) -> Prediction:
        """One decode of tokens after those of the slot, which keeps them; the prediction of those in `outputs`."""
        old = self._cache.ids(slot)
        try:
            self._cache.make_room(slot, len(ids))
            self._context.batch.put(ids, np.arange(len(old), len(old) + len(ids), dtype=np.int32), slot, outputs)
            self._context.decode(causal=causal)
            prediction = reduce(self._context.logits(outputs))
        except BackendError:
            self._cache.clear(slot)
            raise
        self._cache.set_ids(slot, concat(old, ids))
        return prediction

    @override
    def predict(
        self, slot: int, canvases: Canvases, temperature: float, rng: Rng, lanes: Lanes = (), top_k: TopK | None = None
    ) -> list[Prediction]:
        del lanes, top_k  # only DiffusionGemma has these, with a denoiser of its own
        checked = self._checked_canvases(slot, canvases)
        reduce = partial(self._reducer.reduce, temperature=temperature, rng=rng)
        return self._predict(slot, checked, reduce)

    def _ahead(self, _slot: int) -> TokenIds:
        """The end of the prompt that is not in the cache; every step decodes it before each canvas."""
        return NOTHING

    def _num_prompt(self, slot: int) -> int:
        """Tokens of the slot that the cache has during a step."""
        return len(self._cache.ids(slot))

    def _tokens_of_pass(self, lengths: Sequence[int]) -> int:
        """Tokens of the largest pass over canvases, of these lengths with what is decoded before them."""
        return sum(lengths)

    def _checked_canvases(self, slot: int, canvases: Sequence[TokenIds]) -> list[TokenIds]:
        """Refuses canvases that do not fit."""
        num_ahead = len(self._ahead(slot))
        limit = MAX_CANVASES * self._budget.canvas_tokens
        checked = checked_canvases(canvases, self.spec.vocab_size, max_canvases=MAX_CANVASES, max_canvas_tokens=limit)
        self._check_room(slot, [num_ahead + len(canvas) for canvas in checked])
        return checked

    def _check_room(self, slot: int, lengths: Sequence[int]) -> None:
        budget = self._budget
        num_prompt = self._num_prompt(slot)
        num_tokens = self._tokens_of_pass(lengths)
        if (
            num_prompt + max(lengths) > budget.slot_limit
            or num_prompt + num_tokens > budget.context_length
            or num_tokens > budget.canvas_tokens
        ):
            raise RequestError(
                f"a step of {num_tokens} tokens after {num_prompt} does not fit: a slot takes {budget.slot_limit}, "
                f"a step {budget.canvas_tokens}, all slots together {budget.context_length}; raise context_length"
            )

    def _predict(self, slot: int, canvases: Sequence[TokenIds], reduce: Reduce) -> list[Prediction]:
        """Predicts checked canvases; those without an open position cost nothing."""
        mask_id = self.spec.sampling.mask_id if isinstance(self.spec.sampling, MaskSampling) else None
        flags = [np.ones(len(ids), np.bool_) if mask_id is None else ids == mask_id for ids in canvases]
        opened = [(canvas, is_open) for canvas, is_open in zip(canvases, flags, strict=True) if is_open.any()]
        predicted = self._predict_open(slot, opened, reduce) if opened else None
        whole = _with_own_tokens(np.concatenate(canvases), np.concatenate(flags), predicted)
        stops = np.cumsum([len(canvas) for canvas in canvases]).tolist()
        return [take(whole, slice(start, stop)) for start, stop in zip([0, *stops], stops, strict=False)]

    def _predict_open(self, slot: int, canvases: Sequence[OpenCanvas], reduce: Reduce) -> Prediction:
        """Predicts the open positions of canvases."""
        query = CanvasQuery(canvases, self._ahead(slot), is_shifted=self.spec.is_shifted)
        self._decode_canvases(slot, query.ids, query.lengths, query.outputs)
        return query.prediction(reduce(self._context.logits(query.outputs)))

    def _decode_canvases(
        self, slot: int, content: TokenIds | Floats, lengths: Sequence[int], outputs: Flags | int = 1
    ) -> None:
        """One non-causal decode of canvases, each in a sequence of its own that shares the cells of the prompt.

        `content` and `outputs` are those of `Batch.put`; afterwards the cache has the prompt only.
        """
        self._cache.make_room(slot, sum(lengths))
        context = self._context
        prompt = self._cache.ids(slot)
        branches = range(self.num_slots, self.num_slots + len(lengths) - 1)
        offsets = np.concatenate([np.arange(size, dtype=np.int32) for size in lengths])
        sequences = np.repeat(np.array([slot, *branches], dtype=np.int32), lengths)
        context.batch.put(content, offsets + np.int32(len(prompt)), sequences, outputs)
        try:
            for branch in branches:
                context.share(slot, branch)
            self._context.decode(causal=False)
        finally:
            for branch in branches:
                context.crop(branch, 0)
            context.crop(slot, len(prompt))
            self._cache.set_ids(slot, prompt)
