"""Which prompt each slot of the KV cache holds, and which slot a new prompt should take."""

from collections import OrderedDict

import numpy as np

from dg_lsp.canvas.plan import TokenIds, token_ids


class Slots:
    """Least recently used first. Not thread-safe: owned by the engine."""

    def __init__(self, num_slots: int) -> None:
        self._held: OrderedDict[int, TokenIds] = OrderedDict((slot, token_ids([])) for slot in range(num_slots))

    def choose(self, prompt_ids: TokenIds) -> int:
        """The slot that shares at least half of the prompt; without one, the least recently used."""
        best = max(self._held, key=lambda slot: num_shared(self._held[slot], prompt_ids))
        if 2 * num_shared(self._held[best], prompt_ids) < len(prompt_ids):
            best = next(iter(self._held))
        self._held.move_to_end(best)
        return best

    def hold(self, slot: int, prompt_ids: TokenIds) -> None:
        """Notes that the slot holds this prompt now."""
        self._held[slot] = prompt_ids


def num_shared(a: TokenIds, b: TokenIds) -> int:
    """Length of the longest common prefix."""
    length = min(len(a), len(b))
    different = np.flatnonzero(a[:length] != b[:length])
    return int(different[0]) if len(different) else length
