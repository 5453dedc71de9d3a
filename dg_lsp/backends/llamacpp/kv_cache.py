"""The prompts in the KV cache of a context, by slot."""

import math
from dataclasses import dataclass, replace

import numpy as np

from dg_lsp.backends.llamacpp.context import LlamaContext
from dg_lsp.canvas.layout import NOTHING, TokenIds, common_prefix_length, concat
from dg_lsp.canvas.spec import FimTokens
from dg_lsp.diffusion.denoiser import WHOLE_PROMPT
from dg_lsp.errors import BackendError, ModelMemoryError

MIN_MOVED = 16  # shorter suffixes are decoded again, which costs one short pass
MAX_EDITS = 64
"""Edits after which a suffix is decoded again as a whole. After 30 to 100, 1 % of the lines get worse (docs/log.md)."""
REFRESH_TOKENS = 16  # of one pass of a refresh: a typed character waits for one such pass at most


@dataclass(frozen=True, slots=True)
class Drift:
    """Cells of a slot that were computed for an earlier prefix, and moved since."""

    start: int  # first such position; all after it depend on them
    next: int  # position at which the next pass of a refresh begins; an edit does not make it start again
    num_edits: int  # edits that the oldest cells have not seen
    num_recent: int = 0  # edits since the refresh began


class KvCache:
    """Prompts by slot; slot N is sequence N of the context. The least recently used slots are evicted first.

    Where the suffix of a prompt follows its prefix, an edit of the prefix moves the suffix's cells, so that a typed
    character does not decode the suffix again. Their ids are those of the prompt; their states are an approximation.
    """

    def __init__(
        self, context: LlamaContext, prefill_tokens: int, movable: FimTokens | None = None, block_length: int = 0
    ) -> None:
        """Prompts are decoded in batches of at most `prefill_tokens`. The suffix of `movable` prompts is moved.

        With `block_length`, prompts are whole blocks; attention is full inside a block and causal between blocks.
        """
        self._context = context
        self._prefill_tokens = block_length or prefill_tokens
        self._block_length = block_length
        self._movable = movable
        self._ids: dict[int, TokenIds] = {}
        """The least recently used slot first."""
        self._drifts: dict[int, Drift] = {}

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

    def prefill(self, slot: int, ids: TokenIds, most: int = WHOLE_PROMPT) -> int:
        """Gives the slot this prompt, or decodes `most` tokens of it, up to a whole block; returns how many it decoded.

        After a `ModelMemoryError` the slot keeps the common prefix, after a `BackendError` it is empty.
        """
        if not self._context.has_window(slot, common_prefix_length(self.ids(slot), ids)):
            self.clear(slot)
        num_decoded = self._move_suffix(slot, ids, most)
        if num_decoded >= most:
            return num_decoded
        kept = common_prefix_length(self.ids(slot), ids)
        block = self._block_length or 1
        kept -= kept % block
        self.crop(slot, kept)
        ids = ids[: kept + math.ceil((most - num_decoded) / block) * block]
        if kept < len(ids):
            self.make_room(slot, len(ids) - kept)
            self._append(slot, ids[kept:])
        return num_decoded + len(ids) - kept

    def refresh(self, slot: int) -> int:
        """See `Denoiser.refresh`."""
        if slot not in self._drifts or not self._context.has_window(slot, self._drifts[slot].start):
            return 0
        ids = self.ids(slot)
        drift = self._drifts[slot]
        end = drift.start + self._suffix_length(ids[drift.start :])
        start = drift.next if drift.next < end else drift.start
        stop = min(start + REFRESH_TOKENS, end)
        self.crop(slot, end)  # what follows the suffix has read the older states
        self._splice(slot, start, stop, ids[start:stop])
        if stop < end:
            self._drifts[slot] = replace(drift, next=stop)
        elif drift.num_recent:
            self._drifts[slot] = Drift(drift.start, drift.start, drift.num_recent)
        else:
            self._drifts.pop(slot, None)
        return stop - start

    def _move_suffix(self, slot: int, ids: TokenIds, most: int) -> int:
        """Changes the slot's prefix to the prompt's, if it is worthwhile to keep the suffix; returns decoded tokens.

        Of a longer change the first `most` tokens are decoded, and stand between the common prefix and the suffix.
        """
        old = self.ids(slot)
        drift = self._drifts.get(slot, Drift(0, 0, 0))
        at_old = self._suffix_start(old)
        at_new = self._suffix_start(ids)
        kept = common_prefix_length(old, ids)
        if not (at_old and at_new) or kept >= at_old or drift.num_edits >= MAX_EDITS:
            return 0
        # the middle sentinel is always decoded: the fill is predicted from it
        length = min(common_prefix_length(old[at_old:], ids[at_new:]), self._suffix_length(ids[at_new:]))
        is_wide = 0 < self._context.sliding_window <= length  # its first cells could be reused while it is parked
        if is_wide or length < max(MIN_MOVED, at_new - kept):
            return 0
        self.crop(slot, at_old + length)
        if at_new - kept > most:
            self._splice(slot, kept, at_old - 1, ids[kept : kept + most])  # the suffix sentinel moves, too
            start = kept + most
            num_edits = max(1, drift.num_edits)
            self._drifts[slot] = Drift(start, start + drift.next - drift.start, num_edits, drift.num_recent)
            return most
        self._splice(slot, kept, at_old, ids[kept:at_new])
        num_refreshed = drift.next - drift.start
        num_recent = drift.num_recent + 1 if num_refreshed else 0
        self._drifts[slot] = Drift(at_new, at_new + num_refreshed, drift.num_edits + 1, num_recent)
        return at_new - kept

    def _suffix_start(self, ids: TokenIds) -> int:
        """The position after the suffix sentinel; 0 in prompts without one."""
        if self._movable is None:
            return 0
        sentinels = np.flatnonzero(ids == self._movable.suffix_id)
        return int(sentinels[0]) + 1 if len(sentinels) else 0

    def _suffix_length(self, ids: TokenIds) -> int:
        """Tokens before the middle sentinel, of ids that begin inside the suffix."""
        if self._movable is None:
            return len(ids)
        sentinels = np.flatnonzero(ids == self._movable.middle_id)
        return int(sentinels[0]) if len(sentinels) else len(ids)

    def _splice(self, slot: int, start: int, stop: int, ids: TokenIds) -> None:
        """Decodes at least one id in place of the positions from `start` to `stop`, and moves the cells after them."""
        old = self.ids(slot)
        shift = start + len(ids) - stop
        self.make_room(slot, max(0, shift))
        self._context.park(slot, stop, shift)
        self.crop(slot, start)
        self._append(slot, ids)
        self._context.unpark(slot)
        self.set_ids(slot, concat(old[:start], ids, old[stop:]))

    def _append(self, slot: int, ids: TokenIds) -> None:
        """Decodes ids after those of the slot; there is room for them. After a `BackendError` the slot is empty."""
        old = self.ids(slot)
        step = self._prefill_tokens
        try:
            for start in range(0, len(ids), step):
                part = ids[start : start + step]
                positions = np.arange(len(part), dtype=np.int32) + np.int32(len(old) + start)
                self._context.batch.put(part, positions, slot, 0)
                self._context.decode(causal=not self._block_length)
        except BackendError:
            self._context.unpark(slot)
            self.clear(slot)
            raise
        self.set_ids(slot, concat(old, ids))

    def crop(self, slot: int, length: int) -> None:
        """Keeps the first `length` tokens of a slot."""
        ids = self.ids(slot)
        if length < len(ids):
            self._context.crop(slot, length)
        self.set_ids(slot, ids[:length])
        if slot in self._drifts and self._drifts[slot].start >= length:
            del self._drifts[slot]

    def make_room(self, slot: int, num_tokens: int) -> None:
        """Makes cells for more tokens in the slot: the context grows, or other slots are evicted.

        After a `ModelMemoryError` nothing has changed, after a `BackendError` all slots are empty.
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
            self._drifts.clear()
            raise
        for evicted in [cached_slot for cached_slot in self._ids if cached_slot != slot]:
            if self.num_used + num_tokens <= self._context.num_cells:
                break
            self.clear(evicted)

    def clear(self, slot: int) -> None:
        """Empties the slot."""
        self._context.crop(slot, 0)
        self._ids.pop(slot, None)
        self._drifts.pop(slot, None)
