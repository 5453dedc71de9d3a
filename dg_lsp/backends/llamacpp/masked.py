"""Canvases of one decode, each after the same tokens, and which of the decode's logits say what stands in them."""

from collections.abc import Iterator, Sequence

import numpy as np

from dg_lsp.backends.llamacpp.context import LlamaContext, grow
from dg_lsp.backends.llamacpp.denoiser import LlamaDenoiser, footprint_of, merged, open_positions, settled
from dg_lsp.backends.llamacpp.errors import decode_error
from dg_lsp.backends.llamacpp.memory_estimate import MAX_CANVASES, ContextBudget, padded
from dg_lsp.backends.llamacpp.model import LlamaModel, check_vocabulary
from dg_lsp.backends.llamacpp.reduce import Reduced, Reducer
from dg_lsp.backends.llamacpp.threads import threads_for
from dg_lsp.canvas.layout import Flags, TokenIds, token_ids
from dg_lsp.canvas.spec import MaskSampling, ModelSpec
from dg_lsp.diffusion.denoiser import (
    Footprint,
    Prediction,
    check_prompt_length,
    check_slot,
    check_temperature,
    checked_canvases,
    checked_ids,
)
from dg_lsp.errors import BackendError, ModelMemoryError, RequestError
from dg_lsp.settings import RuntimeSettings


class CanvasQuery:
    """Canvases that have an open position."""

    def __init__(self, before: TokenIds, canvases: Sequence[TokenIds], spec: ModelSpec) -> None:
        """`before`, shape (B,), is decoded along before every canvas."""
        self._canvases = canvases
        self._flags = [open_positions(canvas, spec) for canvas in canvases]
        self.ids = np.concatenate([part for canvas in canvases for part in (before, canvas)])
        """All of them, shape (N,)."""
        self.lengths = [len(before) + len(canvas) for canvas in canvases]
        starts = np.cumsum([0, *self.lengths[:-1]])
        shift = 1 if spec.is_shifted else 0
        rows = [
            # nothing comes before the very first token: it is asked at itself, as the models' authors do
            start + np.maximum(np.flatnonzero(flags) + len(before) - shift, 0)
            for start, flags in zip(starts, self._flags, strict=True)
        ]
        self._stops = np.cumsum([len(of_canvas) for of_canvas in rows]).tolist()
        self.rows, self._places = np.unique(np.concatenate(rows), return_inverse=True)
        """Places among the ids whose logits are wanted, ascending."""

    @property
    def outputs(self) -> Flags:
        """Shape (N,): where logits are wanted."""
        outputs = np.zeros(len(self.ids), dtype=np.bool_)
        outputs[self.rows] = True
        return outputs

    def predictions(self, reduced: Reduced) -> list[Prediction]:
        """One for each canvas, from what was computed at `rows`."""
        said = reduced.take(self._places)
        parts = (slice(start, stop) for start, stop in zip([0, *self._stops], self._stops, strict=False))
        return [
            merged(canvas, flags, said, part)
            for canvas, flags, part in zip(self._canvases, self._flags, parts, strict=True)
        ]


def completed(canvases: Sequence[TokenIds], said: Sequence[Prediction], spec: ModelSpec) -> list[Prediction]:
    """What was said of the open canvases, and of the others that they hold what they hold."""
    answers = iter(said)
    return [next(answers) if open_positions(canvas, spec).any() else settled(canvas) for canvas in canvases]


def with_masks(canvases: Sequence[TokenIds], spec: ModelSpec) -> list[TokenIds]:
    """Those that have to be asked: a canvas without an open position predicts itself, and costs nothing."""
    return [canvas for canvas in canvases if open_positions(canvas, spec).any()]


class ShiftedDenoiser(LlamaDenoiser):
    """See `LlamaDenoiser`. Of a model that is not shifted the whole prompt is cached."""

    def __init__(self, model: LlamaModel, spec: ModelSpec, settings: RuntimeSettings) -> None:
        super().__init__(model, spec, settings)
        self._last: dict[int, TokenIds] = {}
        """The prompts' last tokens by slot, shape (0..1,)."""

    def prefill(self, slot: int, prompt_ids: TokenIds) -> int:
        """See `Denoiser.prefill`; the last token, which every step decodes, is not counted."""
        wanted = checked_ids("prompt", prompt_ids, self.spec.vocab_size)
        num_kept = max(0, len(wanted) - self.spec.is_shifted)
        try:
            num_decoded = super().prefill(slot, wanted[:num_kept])
        except BackendError:
            self._last.pop(slot, None)
            raise
        self._last[slot] = token_ids(wanted[num_kept:])
        return num_decoded

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
            canvases,
            self.spec.vocab_size,
            max_canvases=MAX_CANVASES,
            max_canvas_tokens=self._budget.canvas_tokens - MAX_CANVASES,
        )
        last = self._last.get(slot, _NOTHING)
        self._check_place(slot, [len(last) + len(canvas) for canvas in checked])
        asked = with_masks(checked, self.spec)
        said = self._answers(slot, asked, (temperature, rng)) if asked else ()
        return completed(checked, said, self.spec)

    def extend(self, slot: int, ids: TokenIds) -> Prediction:
        """See `Denoiser.extend`; what was trained to see both ways does not go on causally.

        Raises:
            BackendError: always.
        """
        del slot, ids
        raise BackendError(f"{self.spec.name} has no causal head; use the plan canvas or race")

    def _answers(
        self, slot: int, canvases: Sequence[TokenIds], sampling: tuple[float, np.random.Generator]
    ) -> list[Prediction]:
        """One pass over canvases that have a mask, each after the slot's prompt."""
        asked = CanvasQuery(self._last.get(slot, _NOTHING), canvases, self.spec)
        outputs = asked.outputs

        def put(positions: TokenIds, sequences: TokenIds) -> None:
            self._context.batch.put_tokens(asked.ids, positions, sequences, outputs)

        return asked.predictions(self._step(slot, asked.lengths, outputs, put, sampling))


_NOTHING = token_ids([])


class PerRequestDenoiser(ShiftedDenoiser):
    """See `Denoiser`. Of several canvases the first is the one that the prompt is computed with."""

    def __init__(self, model: LlamaModel, spec: ModelSpec, settings: RuntimeSettings) -> None:
        super().__init__(model, spec, settings)
        self._noted: dict[int, TokenIds] = {}
        """Prompts by slot, computed or not, without the last tokens that go along with the canvases."""

    def prefill(self, slot: int, prompt_ids: TokenIds) -> int:
        """See `Denoiser.prefill`; only notes the prompt, all of which the next step will decode."""
        check_slot(slot, self.num_slots)
        wanted = checked_ids("prompt", prompt_ids, self.spec.vocab_size)
        check_prompt_length(len(wanted), self.prompt_limit)
        super().prefill(slot, _NOTHING)
        num_kept = max(0, len(wanted) - self.spec.is_shifted)
        self._noted[slot], self._last[slot] = token_ids(wanted[:num_kept]), token_ids(wanted[num_kept:])
        return len(wanted)

    def _answers(
        self, slot: int, canvases: Sequence[TokenIds], sampling: tuple[float, np.random.Generator]
    ) -> list[Prediction]:
        if not self._num_missing(slot):
            return super()._answers(slot, canvases, sampling)
        first = self._compute(slot, canvases[0], sampling)
        return [*first, *(super()._answers(slot, canvases[1:], sampling) if len(canvases) > 1 else ())]

    def _compute(self, slot: int, canvas: TokenIds, sampling: tuple[float, np.random.Generator]) -> list[Prediction]:
        """One pass over prompt and canvas, of which the prompt stays."""
        kept = self._noted[slot]
        asked = CanvasQuery(np.concatenate([kept, self._last[slot]]), [canvas], self.spec)
        self._make_room(slot, len(asked.ids))
        self._context.batch.put_tokens(asked.ids, np.arange(len(asked.ids), dtype=np.int32), slot, asked.outputs)
        try:
            self._decode(slot, causal=False)
            said = asked.predictions(self._reduced(asked.rows, *sampling))
        except BackendError:
            self._forget(slot)
            raise
        self._context.crop(slot, len(kept))
        self._cache.hold(slot, kept)
        return said

    def _check_place(self, slot: int, lengths: Sequence[int]) -> None:
        longest, *others = sorted(lengths, reverse=True)
        super()._check_place(slot, [self._num_missing(slot) + longest, *others])

    def _num_missing(self, slot: int) -> int:
        """Tokens of the prompt that are not computed: all of it, or none."""
        return len(self._noted.get(slot, _NOTHING)) - len(self._cache.held(slot))


_MEASURED = 16
_FIRST_TOKENS = 512
"""Prompt and canvas that there is room for at the beginning: a pass over all its tokens needs far more than a cache."""


class ExactDenoiser:
    """See `Denoiser`. Only for the thread that loaded the model. Takes the model over and closes it too."""

    def __init__(self, model: LlamaModel, spec: ModelSpec, settings: RuntimeSettings) -> None:
        """Makes a context that holds a short prompt and canvas in one batch, and measures the threads.

        Raises:
            ModelUnsupportedError: spec and model do not belong together.
            ModelMemoryError: llama.cpp has no memory for it.
        """
        check_vocabulary(spec, model)
        self.spec = spec
        self.num_slots = settings.num_slots
        self.tokenizer = model.tokenizer
        self._model = model
        self._budget = _budget(spec, settings, model.trained_context_length)
        self._context = LlamaContext(model, self._budget, flash_attention=model.on_gpu)
        self._reducer = Reducer.of(spec)
        self._prompts: dict[int, TokenIds] = {}
        self.thread_choice = threads_for(settings.threads, self._measured, on_gpu=model.on_gpu)
        self._context.set_threads(self.thread_choice.threads)

    @property
    def threads(self) -> int:
        """CPU threads of a step."""
        return self.thread_choice.threads

    @property
    def context_length(self) -> int:
        """Tokens of prompt and canvas together."""
        return self._budget.slot_limit

    @property
    def footprint(self) -> Footprint:
        """See `Footprint`. For any thread."""
        return footprint_of(self._model, self._context.num_cells, self._budget.context_length, 0)

    @property
    def prompt_limit(self) -> int:
        """Longest prompt in tokens."""
        return self._budget.prompt_limit

    def prefill(self, slot: int, prompt_ids: TokenIds) -> int:
        """See `Denoiser.prefill`; only notes the prompt, all of which every step will decode."""
        check_slot(slot, self.num_slots)
        wanted = checked_ids("prompt", prompt_ids, self.spec.vocab_size)
        check_prompt_length(len(wanted), self.prompt_limit)
        self._prompts[slot] = token_ids(wanted)
        return len(wanted)

    def predict(
        self,
        slot: int,
        canvases: Sequence[TokenIds],
        temperature: float,
        rng: np.random.Generator,
        lanes: Sequence[int] = (),
    ) -> list[Prediction]:
        """See `Denoiser.predict`; as many canvases in one decode as fit, each with the prompt before it."""
        del lanes  # nothing is kept of a canvas
        check_slot(slot, self.num_slots)
        check_temperature(temperature)
        prompt, room = self._prompts.get(slot, _NOTHING), self._budget.slot_limit
        checked = checked_canvases(
            canvases, self.spec.vocab_size, max_canvases=MAX_CANVASES, max_canvas_tokens=MAX_CANVASES * room
        )
        longest = max(map(len, checked))
        if len(prompt) + longest > room:
            raise RequestError(
                f"a prompt of {len(prompt)} tokens and a canvas of {longest} do not fit: the context takes {room}; "
                "raise context_length"
            )
        said: list[Prediction] = []
        asked = with_masks(checked, self.spec)
        room = self._room(len(prompt) + longest, sum(len(prompt) + len(canvas) for canvas in asked))
        for group in _groups(asked, len(prompt), room):
            said += self._decode(CanvasQuery(prompt, group, self.spec), temperature, rng)
        return completed(checked, said, self.spec)

    def extend(self, slot: int, ids: TokenIds) -> Prediction:
        """See `Denoiser.extend`; these models attend in both directions only.

        Raises:
            BackendError: always.
        """
        del slot, ids
        raise BackendError(f"{self.spec.name} has no causal head; use the plan canvas or race")

    def close(self) -> None:
        """Frees context and model. Harmless when repeated."""
        self._context.close()
        self._model.close()

    def _room(self, num_alone: int, num_all: int) -> int:
        """Tokens of one decode: all, if there is memory for them, else at least those of the longest canvas.

        Raises:
            ModelMemoryError: not even those.
        """
        limit = self._budget.slot_limit
        num_missing = min(num_all, limit) - self._context.num_cells
        if num_missing > 0:
            try:
                grow(self._context, self._budget, num_missing)
            except ModelMemoryError:
                if num_alone > self._context.num_cells:
                    raise
        return min(limit, self._context.num_cells)

    def _decode(self, asked: CanvasQuery, temperature: float, rng: np.random.Generator) -> list[Prediction]:
        """One decode, every canvas a sequence of its own; nothing of it stays in a cache."""
        context, has_cache = self._context, self._model.has_cache
        # without a cache llama.cpp computes the logits of every token, wanted or not
        outputs = asked.outputs if has_cache else 1
        positions = np.concatenate([np.arange(length, dtype=np.int32) for length in asked.lengths])
        sequences = np.repeat(np.arange(len(asked.lengths), dtype=np.int32), asked.lengths)
        context.batch.put_tokens(asked.ids, positions, sequences, outputs)
        try:
            if status := context.decode(causal=False):
                raise decode_error(status)
            logits = context.logits(len(asked.rows)) if has_cache else context.logits(len(asked.ids))[asked.rows]
            return asked.predictions(self._reducer.reduce(logits, temperature, rng))
        finally:
            for sequence in range(len(asked.lengths)) if has_cache else ():
                context.crop(sequence, 0)

    def _measured(self, threads: int) -> None:
        self._context.set_threads(threads)
        positions = np.arange(min(_MEASURED, self._budget.slot_limit), dtype=np.int32)
        self._context.batch.put_tokens(np.zeros_like(positions), positions, 0, 1)
        self._context.decode(causal=False)
        if self._model.has_cache:
            self._context.crop(0, 0)


def _budget(spec: ModelSpec, settings: RuntimeSettings, trained_length: int) -> ContextBudget:
    """Prompt, canvas and what a canvas may grow by, all in one batch."""
    sampling = spec.sampling
    grown = sampling.max_free if isinstance(sampling, MaskSampling) and sampling.expand_id is not None else 0
    longest = spec.longest_block + grown
    wanted = settings.context_length or spec.max_prompt_tokens + longest
    length = min(wanted, trained_length)
    return ContextBudget(
        context_length=length,
        first_length=length if settings.context_length else min(length, padded(max(_FIRST_TOKENS, longest))),
        slot_limit=length,
        batch_tokens=length,
        canvas_tokens=length,
        num_sequences=MAX_CANVASES,
        longest_canvas=longest,
    )


def _groups(canvases: Sequence[TokenIds], num_before: int, room: int) -> Iterator[list[TokenIds]]:
    """Runs of canvases that fit into one batch, each with so many tokens before it."""
    group: list[TokenIds] = []
    for canvas in canvases:
        if sum(num_before + len(other) for other in (*group, canvas)) > room:
            yield group
            group = []
        group.append(canvas)
    if group:
        yield group
