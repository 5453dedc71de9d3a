"""The KV cache of one context: which prompt each slot has, and which slots are evicted when it is full."""

import numpy as np

from dg_lsp.backends.llamacpp.context import NO_CELLS, LlamaContext
from dg_lsp.backends.llamacpp.errors import decode_error
from dg_lsp.canvas.layout import TokenIds, common_prefix_length, token_ids
from dg_lsp.errors import BackendError, ModelMemoryError

NOTHING = token_ids([])


class KvCache:
    """Prompts by slot; slot N is sequence N of the context. The least recently used slots are evicted first."""

    def __init__(self, context: LlamaContext, *, prefill_tokens: int) -> None:
        """Prompts are decoded in batches of at most `prefill_tokens`."""
        self._context = context
        self._prefill_tokens = prefill_tokens
        self._ids: dict[int, TokenIds] = {}
        """The least recently used slot first."""

    @property
    def num_used(self) -> int:
        """Cells in use. For any thread."""
        return sum(map(len, list(self._ids.values())))

    def ids(self, slot: int) -> TokenIds:
        """The slot's prompt; empty if it was evicted."""
        return self._ids.get(slot, NOTHING)

    def set_ids(self, slot: int, ids: TokenIds) -> None:
        """Records the slot's prompt, and that it was used last."""
        self._ids.pop(slot, None)
        if len(ids):
            self._ids[slot] = ids

    def prefill(self, slot: int, ids: TokenIds) -> int:
        """Gives the slot this prompt; returns the number of tokens that had to be decoded.

        Raises:
            ModelMemoryError: there is not enough memory; the slot keeps the common prefix.
            BackendError: llama.cpp failed; the slot is empty.
        """
        old = self.ids(slot)
        kept = common_prefix_length(old, ids)
        if kept < len(old):
            self._context.crop(slot, kept)
        self.set_ids(slot, ids[:kept])
        if kept == len(ids):
            return 0
        try:
            self.make_room(slot, len(ids) - kept)
            for start in range(kept, len(ids), self._prefill_tokens):
                stop = min(start + self._prefill_tokens, len(ids))
                positions = np.arange(start, stop, dtype=np.int32)
                self._context.batch.put_tokens(ids[start:stop], positions, slot, 0)
                self.decode(slot, causal=True)
        except BackendError:
            self.clear(slot)
            raise
        self.set_ids(slot, ids)
        return len(ids) - kept

    def decode(self, slot: int, *, causal: bool) -> None:
        """Runs the batch; if the cache turns out to be full, evicts all other slots and retries.

        Raises:
            BackendError: llama.cpp failed.
        """
        if self._context.decode(causal=causal) != NO_CELLS:
            return
        for other in self._others(slot):
            self.clear(other)
        if self._context.decode(causal=causal) == NO_CELLS:
            raise decode_error(NO_CELLS)

    def make_room(self, slot: int, num_tokens: int) -> None:
        """Makes cells for more tokens in the slot: the context grows, or other slots are evicted.

        Raises:
            ModelMemoryError: there is not enough memory, even without the other slots.
            BackendError: the content of all slots is lost.
        """
        num_missing = self.num_used + num_tokens - self._context.num_cells
        if num_missing <= 0:
            return
        try:
            self._context.grow(num_missing, list(self._ids))
        except ModelMemoryError:
            if len(self.ids(slot)) + num_tokens > self._context.num_cells:
                raise
        except BackendError:
            self._ids.clear()
            raise
        for other in self._others(slot):
            if self.num_used + num_tokens <= self._context.num_cells:
                break
            self.clear(other)

    def clear(self, slot: int) -> None:
        """Empties the slot."""
        self._context.crop(slot, 0)
        self._ids.pop(slot, None)

    def _others(self, slot: int) -> list[int]:
        return [other for other in self._ids if other != slot]
