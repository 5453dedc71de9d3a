"""Which prompt each slot of the KV cache holds, and which slot a new prompt takes."""

from collections import OrderedDict

from dg_lsp.canvas.layout import TokenIds, common_prefix_length, token_ids


class KVSlots:
    """Least recently used first. Not thread-safe: owned by the engine."""

    def __init__(self, num_slots: int) -> None:
        self._held: OrderedDict[int, TokenIds] = OrderedDict((slot, token_ids([])) for slot in range(num_slots))
        self.user: object = None
        """The request that used the model last."""

    def choose(self, prompt_ids: TokenIds) -> int:
        """The slot that shares at least half of the prompt; without one, the least recently used."""
        best = max(self._held, key=lambda slot: self.num_shared(slot, prompt_ids))
        if 2 * self.num_shared(best, prompt_ids) < len(prompt_ids):
            best = next(iter(self._held))
        self._held.move_to_end(best)
        return best

    def num_shared(self, slot: int, prompt_ids: TokenIds) -> int:
        """How many of the prompt's first tokens the slot holds."""
        return common_prefix_length(self._held[slot], prompt_ids)

    def hold(self, slot: int, prompt_ids: TokenIds) -> None:
        """Records that the slot holds this prompt now."""
        self._held[slot] = prompt_ids
