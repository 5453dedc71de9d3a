"""The denoiser for models trained to see all of prompt and canvas from everywhere: every step computes both again.

Exact, and slow: nothing of a prompt can be kept, since all of it depends on the canvas. llama.cpp runs its own
diffusion architectures (`dream`, `llada`, `llada-moe`, `rnd1`) only so; Open-dCoder, a `qwen2`, has to be asked for it.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from dg_lsp.backends.checks import check_prompt_length, check_slot, check_temperature, checked_canvases, checked_ids
from dg_lsp.backends.llamacpp.asked import Asked, completed, with_masks
from dg_lsp.backends.llamacpp.budget import MAX_CANVASES, ContextBudget, padded
from dg_lsp.backends.llamacpp.context import LlamaContext
from dg_lsp.backends.llamacpp.failures import decode_error
from dg_lsp.backends.llamacpp.footprint import footprint_of
from dg_lsp.backends.llamacpp.growth import grow
from dg_lsp.backends.llamacpp.match import check_vocabulary
from dg_lsp.backends.llamacpp.model import LlamaModel
from dg_lsp.backends.llamacpp.reduce import Reducer
from dg_lsp.backends.llamacpp.threads import threads_for
from dg_lsp.canvas.plan import TokenIds, token_ids
from dg_lsp.canvas.spec import MaskSampling, ModelSpec
from dg_lsp.diffusion.denoiser import Footprint, Prediction
from dg_lsp.errors import BackendError, ModelMemoryError, RequestError
from dg_lsp.settings import RuntimeSettings

_MEASURED = 16
_FIRST_TOKENS = 512
"""Prompt and canvas that there is room for at the beginning: a pass over all its tokens needs far more than a cache."""
_NOTHING = token_ids([])


class RecomputingDenoiser:
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
            said += self._decode(Asked(prompt, group, self.spec), temperature, rng)
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

    def _decode(self, asked: Asked, temperature: float, rng: np.random.Generator) -> list[Prediction]:
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
