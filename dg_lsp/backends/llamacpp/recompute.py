"""The denoiser for architectures that llama.cpp runs without a KV cache (`dream`, `llada`): nothing is remembered.

Every step decodes the whole prompt again, all of it bidirectionally, as llama.cpp's own `llama-diffusion-cli` does.
"""

from collections.abc import Sequence

import numpy as np

from dg_lsp.backends.checks import check_prompt_length, check_slot, check_temperature, checked_canvases, checked_ids
from dg_lsp.backends.llamacpp.budget import ContextBudget
from dg_lsp.backends.llamacpp.context import LlamaContext
from dg_lsp.backends.llamacpp.model import LlamaModel
from dg_lsp.backends.llamacpp.predictions import merged, open_positions, settled
from dg_lsp.backends.llamacpp.reduce import Reducer
from dg_lsp.canvas.plan import TokenIds, token_ids
from dg_lsp.canvas.spec import ModelSpec
from dg_lsp.diffusion.denoiser import Prediction
from dg_lsp.errors import BackendError, ModelUnsupportedError


class RecomputingDenoiser:
    """See `Denoiser`. One slot; only for the thread that loaded the model. Takes the model over and closes it too."""

    def __init__(self, model: LlamaModel, spec: ModelSpec, *, threads: int) -> None:
        """Makes a context that holds the longest prompt and canvas in one batch.

        Raises:
            ModelUnsupportedError: the architecture has a KV cache.
            ModelMemoryError: llama.cpp has no memory for it.
        """
        if model.has_cache:
            raise ModelUnsupportedError(f"{model.path} has a KV cache; open it with LlamaDenoiser")
        longest = max(spec.canvas_lengths)
        length = spec.max_prompt_tokens + longest
        self.spec = spec
        self.num_slots = 1
        self.tokenizer = model.tokenizer
        self._model = model
        budget = ContextBudget(
            context_length=length,
            slot_limit=length,
            batch_tokens=length,
            canvas_tokens=length,  # without a cache llama.cpp computes the logits of every token, wanted or not
            num_sequences=1,
            longest_canvas=longest,
        )
        self._context = LlamaContext(model, budget, flash_attention=model.on_gpu)
        self._context.set_threads(threads)
        self._reducer = Reducer(spec.banned_ids)
        self._prompt = token_ids([])

    def prefill(self, slot: int, prompt_ids: TokenIds) -> int:
        """See `Denoiser.prefill`; only notes the prompt, all of which every step will decode."""
        check_slot(slot, self.num_slots)
        wanted = checked_ids("prompt", prompt_ids, self.spec.vocab_size)
        check_prompt_length(len(wanted), self.spec.max_prompt_tokens)
        self._prompt = token_ids(wanted)
        return len(wanted)

    def predict(
        self,
        slot: int,
        canvases: Sequence[TokenIds],
        temperature: float,
        rng: np.random.Generator,
        lanes: Sequence[int] = (),
    ) -> list[Prediction]:
        """See `Denoiser.predict`; one decode per canvas."""
        del lanes  # nothing is kept of a canvas
        check_slot(slot, self.num_slots)
        check_temperature(temperature)
        checked = checked_canvases(
            canvases, self.spec.vocab_size, max_canvases=8, max_canvas_tokens=max(self.spec.canvas_lengths)
        )
        return [self._predict(canvas, temperature, rng) for canvas in checked]

    def extend(self, slot: int, ids: TokenIds) -> Prediction:
        """See `Denoiser.extend`; these architectures attend in both directions only.

        Raises:
            BackendError: always.
        """
        del slot, ids
        raise BackendError(f"{self.spec.name} has no causal head; use the plan canvas or race")

    def close(self) -> None:
        """Frees context and model. Harmless when repeated."""
        self._context.close()
        self._model.close()

    def _predict(self, canvas: TokenIds, temperature: float, rng: np.random.Generator) -> Prediction:
        is_open = open_positions(canvas, self.spec)
        num_open = int(is_open.sum())
        if not num_open:
            return settled(canvas)
        ids = token_ids(np.concatenate([self._prompt, canvas]))
        positions = np.arange(len(ids), dtype=np.int32)
        self._context.batch.put_tokens(ids, positions, np.zeros_like(positions), 1)
        self._context.decode(causal=False)
        logits = self._context.logits(len(ids))[len(self._prompt) :]
        return merged(canvas, is_open, self._reducer.reduce(logits[is_open], temperature, rng), slice(0, num_open))
