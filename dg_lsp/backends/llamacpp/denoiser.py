"""The denoiser on llama.cpp: a causally encoded prompt in the KV cache, canvases decoded bidirectionally after it."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import repeat

import numpy as np
import numpy.typing as npt

from dg_lsp.backends.llamacpp.candidates import Candidates
from dg_lsp.backends.llamacpp.context import NO_CELLS, LlamaContext, grow
from dg_lsp.backends.llamacpp.errors import decode_error
from dg_lsp.backends.llamacpp.kv_cache import PromptCache
from dg_lsp.backends.llamacpp.library import gpus
from dg_lsp.backends.llamacpp.memory_estimate import MAX_CANVASES, context_budget
from dg_lsp.backends.llamacpp.model import LlamaModel, check_compatible
from dg_lsp.backends.llamacpp.reduce import Reduced, Reducer
from dg_lsp.backends.llamacpp.threads import threads_for
from dg_lsp.canvas.layout import Flags, TokenIds, common_prefix_length, token_ids
from dg_lsp.canvas.spec import MaskSampling, ModelSpec
from dg_lsp.diffusion.denoiser import (
    DeviceMemory,
    Floats,
    Footprint,
    Prediction,
    check_prompt_length,
    check_slot,
    check_temperature,
    checked_canvases,
    checked_extension,
    checked_ids,
)
from dg_lsp.errors import BackendError, ModelMemoryError, RequestError
from dg_lsp.settings import RuntimeSettings


def footprint_of(model: LlamaModel, num_cells: int, limit: int, num_used: int) -> Footprint:
    """Cells by now, at most and in use."""
    used = gpus() if model.on_gpu else ()
    return Footprint(
        weights_bytes=model.weights.gpu + model.weights.host,
        cache_bytes=num_cells * model.kv_bytes_per_token if model.has_cache else 0,
        cache_cells=num_cells,
        cache_limit=limit,
        cache_used=num_used,
        devices=tuple(DeviceMemory(device.name, device.memory_free, device.memory_total) for device in used),
    )


def open_positions(canvas: TokenIds, spec: ModelSpec) -> Flags:
    """Which positions need the model: masks, or all of them for uniform noise."""
    if isinstance(spec.sampling, MaskSampling):
        return canvas == spec.sampling.mask_id
    return np.ones(len(canvas), dtype=np.bool_)


def settled(canvas: TokenIds) -> Prediction:
    """Every position predicts the token it holds."""
    return Prediction(
        canvas.copy(), canvas.copy(), np.ones(len(canvas), dtype=np.float32), np.zeros(len(canvas), dtype=np.float32)
    )


def merged(canvas: TokenIds, flags: Flags, reduced: Reduced, rows: slice) -> Prediction:
    """What the canvas holds, and at its open positions what the model says."""
    said = whole(reduced, rows)
    if rows.stop - rows.start == len(canvas):
        return said
    prediction = settled(canvas)
    prediction.argmax_ids[flags] = said.argmax_ids
    prediction.sampled_ids[flags] = said.sampled_ids
    prediction.confidence[flags] = said.confidence
    prediction.entropy[flags] = said.entropy
    if said.unexpanded_ids is None or said.unexpanded_confidence is None:
        return prediction
    ids, confidence = canvas.copy(), np.ones(len(canvas), dtype=np.float32)
    ids[flags], confidence[flags] = said.unexpanded_ids, said.unexpanded_confidence
    return replace(prediction, unexpanded_ids=ids, unexpanded_confidence=confidence)


def whole(reduced: Reduced, rows: slice) -> Prediction:
    """A canvas of which every position was asked for."""
    said = reduced.take(rows)
    return Prediction(
        said.argmax_ids,
        said.sampled_ids,
        said.confidence,
        said.entropy,
        said.unexpanded_ids,
        said.unexpanded_confidence,
    )


_FLASH_FROM = 64
"""llama.cpp's flash attention on a CPU gains only from so many queries on; shorter canvases lose 15 to 35 %."""

_PREFILL_TOKENS = 128
"""Prompt tokens decoded at a time on a CPU: in one go all would look at the cells of the last, 256 more or less."""


class LlamaDenoiser:
    """See `Denoiser`. One thread only, the one that loaded the model. Takes the model over and closes it too.

    What would make ggml abort the process (a canvas over the physical batch, an id outside the vocabulary, a position
    beyond the context) is refused before the call.
    """

    def __init__(
        self, model: LlamaModel, spec: ModelSpec, settings: RuntimeSettings, *, device_candidates: bool = False
    ) -> None:
        """Makes the context and measures the threads.

        `device_candidates` reduces logits on the device (see `Candidates`: rarely worth it).

        Raises:
            ModelUnsupportedError: spec and model do not belong together, or the model cannot do this.
            ModelMemoryError: the KV cache does not fit.
        """
        check_compatible(spec, model)
        self.spec = spec
        self.num_slots = settings.num_slots
        self.tokenizer = model.tokenizer
        self._model = model
        self._budget = context_budget(
            spec,
            settings,
            vocab_size=model.vocab_size,
            trained_length=model.trained_context_length,
            kv_bytes_per_token=model.kv_bytes_per_token,
        )
        flash = model.on_gpu or min(spec.canvas_lengths, default=1) >= _FLASH_FROM
        self._context = LlamaContext(model, self._budget, flash_attention=flash)
        capacity = self._context.batch.capacity
        self._prefill_tokens = capacity if model.on_gpu else min(capacity, _PREFILL_TOKENS)
        self._cache = PromptCache(settings.num_slots, self._context.num_cells)
        self._reducer = Reducer.of(spec)
        self._greedy = np.random.default_rng(0)  # asked for nothing at temperature 0
        self.thread_choice = threads_for(settings.threads, self._measured, on_gpu=model.on_gpu)
        self._context.set_threads(self.thread_choice.threads)
        self._candidates = Candidates(self._context, self._budget, spec, wanted=device_candidates)

    @property
    def threads(self) -> int:
        """CPU threads of a step."""
        return self.thread_choice.threads

    @property
    def context_length(self) -> int:
        """Tokens of the KV cache by now, shared by all slots."""
        return self._cache.num_cells

    @property
    def footprint(self) -> Footprint:
        """See `Footprint`."""
        return footprint_of(self._model, self._cache.num_cells, self._budget.context_length, self._cache.num_held)

    @property
    def prompt_limit(self) -> int:
        """Longest prompt in tokens."""
        return self._budget.prompt_limit

    def prefill(self, slot: int, prompt_ids: TokenIds) -> int:
        """See `Denoiser.prefill`."""
        check_slot(slot, self.num_slots)
        wanted = token_ids(checked_ids("prompt", prompt_ids, self.spec.vocab_size))
        check_prompt_length(len(wanted), self._budget.prompt_limit)
        held = self._cache.held(slot)
        kept = common_prefix_length(held, wanted)
        if kept < len(held):
            self._context.crop(slot, kept)
        self._cache.hold(slot, wanted[:kept])
        if kept == len(wanted):
            return 0
        try:
            self._make_room(slot, len(wanted) - kept)
            for start in range(kept, len(wanted), self._prefill_tokens):
                stop = min(start + self._prefill_tokens, len(wanted))
                positions = np.arange(start, stop, dtype=np.int32)
                self._context.batch.put_tokens(wanted[start:stop], positions, slot, 0)
                self._decode(slot, causal=True)
        except BackendError:
            self._forget(slot)
            raise
        self._cache.hold(slot, wanted)
        return len(wanted) - kept

    def predict(
        self,
        slot: int,
        canvases: Sequence[TokenIds],
        temperature: float,
        rng: np.random.Generator,
        lanes: Sequence[int] = (),
    ) -> list[Prediction]:
        """See `Denoiser.predict`."""
        del lanes  # nothing is kept of a canvas
        check_temperature(temperature)
        checked = checked_canvases(
            canvases, self.spec.vocab_size, max_canvases=MAX_CANVASES, max_canvas_tokens=self._budget.canvas_tokens
        )
        self._check_place(slot, [len(canvas) for canvas in checked])
        open_flags = [open_positions(canvas, self.spec) for canvas in checked]
        # A canvas without a mask predicts itself, and costs nothing.
        asked = [number for number, flags in enumerate(open_flags) if flags.any()]
        if not asked:
            return [settled(canvas) for canvas in checked]
        ids = np.concatenate([checked[number] for number in asked])
        outputs = np.concatenate([open_flags[number] for number in asked])
        lengths = [len(checked[number]) for number in asked]

        def put(positions: TokenIds, sequences: TokenIds) -> None:
            self._context.batch.put_tokens(ids, positions, sequences, outputs)

        reduced = self._step(slot, lengths, outputs, put, (temperature, rng))
        stops = np.cumsum([np.count_nonzero(flags) for flags in open_flags]).tolist()
        rows = (slice(start, stop) for start, stop in zip([0, *stops], stops, strict=False))
        return [merged(*parts) for parts in zip(checked, open_flags, repeat(reduced), rows, strict=False)]

    def predict_rows(
        self, slot: int, canvases: Sequence[Floats], temperature: float, rng: np.random.Generator
    ) -> list[Prediction]:
        """`predict` from embeddings of shape (L, embedding length): what self-conditioning feeds. Every position
        is predicted.

        Raises:
            RequestError: as `predict`, or rows of another width or not finite, or a model that cannot be fed them.
        """
        check_temperature(temperature)
        if not self._model.has_plain_positions:
            raise RequestError("this model takes no embeddings as input")
        rows = [np.asarray(canvas, dtype=np.float32) for canvas in canvases]
        for array in rows:
            if array.ndim != 2 or array.shape[1] != self._model.embedding_length or not np.isfinite(array).all():
                raise RequestError(f"embeddings need finite rows of {self._model.embedding_length} numbers")
        checked_canvases(
            [np.zeros(len(array), dtype=np.int32) for array in rows],
            self.spec.vocab_size,
            max_canvases=MAX_CANVASES,
            max_canvas_tokens=self._budget.canvas_tokens,
        )
        lengths = [len(array) for array in rows]
        self._check_place(slot, lengths)
        content = np.concatenate(rows)

        def put(positions: TokenIds, sequences: TokenIds) -> None:
            self._context.batch.put_rows(content, positions, sequences)

        reduced = self._step(slot, lengths, np.ones(len(content), dtype=np.bool_), put, (temperature, rng))
        stops = np.cumsum(lengths).tolist()
        return [whole(reduced, slice(stop - size, stop)) for size, stop in zip(lengths, stops, strict=True)]

    def extend(self, slot: int, ids: TokenIds) -> Prediction:
        """See `Denoiser.extend`."""
        check_slot(slot, self.num_slots)
        new = checked_extension(ids, self.spec.vocab_size, self._budget.canvas_tokens)
        count = len(new)
        self._check_place(slot, [count])
        held = self._cache.held(slot)
        try:
            self._make_room(slot, count)
            positions = np.arange(len(held), len(held) + count, dtype=np.int32)
            self._context.batch.put_tokens(new, positions, slot, 1)
            self._decode(slot, causal=True)
            reduced = self._reduced(np.arange(count), 0.0, self._greedy)
        except BackendError:
            self._forget(slot)
            raise
        self._cache.hold(slot, token_ids(np.concatenate([held, new])))
        return whole(reduced, slice(0, count))

    def close(self) -> None:
        """Frees context and model. Harmless when repeated."""
        self._candidates.close()
        self._context.close()
        self._model.close()

    def _check_place(self, slot: int, lengths: Sequence[int]) -> None:
        check_slot(slot, self.num_slots)
        held = len(self._cache.held(slot))
        limit, limit_of_all = self._budget.slot_limit, self._budget.context_length
        if held + max(lengths) > limit or held + sum(lengths) > limit_of_all:
            raise RequestError(
                f"a prompt of {held} tokens and canvases of {sum(lengths)} do not fit: a slot takes {limit}, "
                f"all of them {limit_of_all}; raise context_length"
            )

    def _step(
        self,
        slot: int,
        lengths: Sequence[int],
        outputs: Flags,
        put: Callable[[TokenIds, TokenIds], None],
        sampling: tuple[float, np.random.Generator],
    ) -> Reduced:
        """One non-causal decode of all canvases, each in a sequence of its own that shares the prompt's cells.

        `put(positions, sequences)` fills the batch; `outputs` says which of its tokens are reduced.
        """
        self._make_room(slot, len(outputs))
        context, prompt_length = self._context, len(self._cache.held(slot))
        branches = range(self.num_slots, self.num_slots + len(lengths) - 1)
        offsets = np.concatenate([np.arange(size, dtype=np.int32) for size in lengths])
        sequences = np.repeat(np.array([slot, *branches], dtype=np.int32), lengths)
        put(offsets + np.int32(prompt_length), sequences)
        try:
            for branch in branches:
                context.share(slot, branch)
            self._decode(slot, causal=False)
            return self._reduced(np.flatnonzero(outputs), *sampling)
        finally:
            for branch in branches:
                context.crop(branch, 0)
            context.crop(slot, prompt_length)
            self._cache.touch(slot)

    def _reduced(self, where: npt.NDArray[np.intp], temperature: float, rng: np.random.Generator) -> Reduced:
        """The last batch's outputs; `where`, shape (N,), are their places in it."""
        if self._candidates.is_used:
            return self._candidates.reduce(where, temperature, rng)
        return self._reducer.reduce(self._context.logits(len(where)), temperature, rng)

    def _decode(self, slot: int, *, causal: bool) -> None:
        """Runs the batch; when the cache turns out to be full, all other slots are given up for it."""
        if self._context.decode(causal=causal) != NO_CELLS:
            return
        for other in self._cache.others(slot):
            self._forget(other)
        if self._context.decode(causal=causal) == NO_CELLS:
            raise decode_error(NO_CELLS)

    def _make_room(self, slot: int, num_tokens: int) -> None:
        """The context grows, and where it cannot, other slots are given up; refuses what is too much without them."""
        if not (num_missing := self._cache.num_missing(num_tokens)):
            return
        self._candidates.close()
        try:
            grow(self._context, self._budget, num_missing, self._cache.filled())
        except ModelMemoryError:
            if len(self._cache.held(slot)) + num_tokens > self._context.num_cells:
                raise
        except BackendError:
            self._cache.clear()
            raise
        finally:
            self._cache.num_cells = self._context.num_cells
            self._candidates.attach()
        for victim in self._cache.victims(slot, num_tokens):
            self._forget(victim)

    def _forget(self, slot: int) -> None:
        self._context.crop(slot, 0)
        self._cache.hold(slot, token_ids([]))

    def _measured(self, threads: int) -> None:
        positions = np.arange(min(16, self._budget.canvas_tokens), dtype=np.int32)
        self._context.set_threads(threads)
        self._context.batch.put_tokens(np.zeros_like(positions), positions, 0, 1)
        self._context.decode(causal=False)
        self._context.crop(0, 0)
