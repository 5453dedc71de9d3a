"""The same weights token by token: the autoregressive baseline that diffusion is measured against."""

from collections.abc import Callable

import numpy as np

from dg_lsp.backends.checks import check_prompt_length, checked_ids
from dg_lsp.backends.llamacpp.budget import ContextBudget
from dg_lsp.backends.llamacpp.context import NO_CELLS, LlamaContext
from dg_lsp.backends.llamacpp.failures import decode_error
from dg_lsp.backends.llamacpp.model import LlamaModel
from dg_lsp.canvas.plan import TokenIds, token_ids
from dg_lsp.canvas.spec import ModelSpec
from dg_lsp.diffusion.denoiser import Floats
from dg_lsp.errors import RequestError

_BATCH = 512


class GreedyDecoder:
    """A context of its own on a model that others may use too; only for the model's thread. Keeps no prompt."""

    def __init__(self, model: LlamaModel, spec: ModelSpec, *, threads: int, max_tokens: int) -> None:
        """Makes a context that holds the model's longest prompt and `max_tokens` after it.

        Raises:
            ModelMemoryError, ModelUnsupportedError: llama.cpp cannot make it.
        """
        length = spec.max_prompt_tokens + max_tokens
        budget = ContextBudget(
            context_length=length,
            slot_limit=length,
            batch_tokens=min(_BATCH, length),
            canvas_tokens=1,
            num_sequences=1,
            longest_canvas=max_tokens,
        )
        self._spec = spec
        self._max_tokens = max_tokens
        self._context = LlamaContext(model, budget, flash_attention=model.on_gpu)
        self._context.set_threads(threads)
        self._banned = np.array(spec.banned_ids, np.intp)
        self._position = 0
        self._next = -1

    def prefill(self, prompt_ids: TokenIds) -> None:
        """Decodes the whole prompt.

        Raises:
            RequestError: it is empty, too long, or has ids outside the vocabulary.
            BackendError: the runtime failed.
        """
        wanted = token_ids(checked_ids("prompt", prompt_ids, self._spec.vocab_size))
        if not len(wanted):
            raise RequestError("an empty prompt has no next token")
        check_prompt_length(len(wanted), self._spec.max_prompt_tokens)
        self._context.crop(0, 0)
        self._position = 0
        for start in range(0, len(wanted), self._context.batch.capacity):
            self._next = self._decode(wanted[start : start + self._context.batch.capacity])

    def decode(self, is_last: Callable[[int], bool]) -> TokenIds:
        """The most probable tokens after the prompt, up to an end token, which is left out, or the last one.

        One forward pass per token, whose result is the next one; call once per `prefill`.
        """
        found: list[int] = []
        while len(found) < self._max_tokens and self._next not in self._spec.end_ids:
            found.append(self._next)
            if is_last(found[-1]):
                break
            self._next = self._decode(token_ids(found[-1:]))
        return token_ids(found)

    def close(self) -> None:
        """Frees the context; the model stays. Harmless when repeated."""
        self._context.close()

    def _decode(self, ids: TokenIds) -> int:
        """The best token after these."""
        positions = np.arange(self._position, self._position + len(ids), dtype=np.int32)
        outputs = np.arange(len(ids)) == len(ids) - 1
        self._context.batch.put_tokens(ids, positions, np.zeros_like(positions), outputs)
        if self._context.decode(causal=True) == NO_CELLS:
            raise decode_error(NO_CELLS)
        self._position += len(ids)
        logits: Floats = self._context.logits(1)[0]
        logits[self._banned] = -np.inf
        return int(logits.argmax())
