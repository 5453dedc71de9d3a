"""What each slot's sequence holds in the KV cache, and which slot has to go when it is full. Bookkeeping only."""

from dg_lsp.canvas.layout import TokenIds, token_ids

_NOTHING = token_ids([])


class PromptCache:
    """Prompts by slot; the least recently used ones are given up first."""

    def __init__(self, num_slots: int, num_cells: int) -> None:
        self.num_slots = num_slots
        self.num_cells = num_cells
        """Of the context; may grow."""
        self._held: dict[int, TokenIds] = {}
        """Oldest use first."""

    def held(self, slot: int) -> TokenIds:
        """The ids in the slot; empty when it was never filled or was given up."""
        return self._held.get(slot, _NOTHING)

    def hold(self, slot: int, ids: TokenIds) -> None:
        """The slot holds these ids now, and is the most recently used."""
        self._held.pop(slot, None)
        if len(ids):
            self._held[slot] = ids

    def touch(self, slot: int) -> None:
        """The slot is the most recently used."""
        if slot in self._held:
            self._held[slot] = self._held.pop(slot)

    @property
    def num_held(self) -> int:
        """Cells that hold a token. For any thread."""
        return sum(map(len, list(self._held.values())))

    def filled(self) -> list[int]:
        """Slots that hold anything, least recently used first."""
        return list(self._held)

    def clear(self) -> None:
        """No slot holds anything."""
        self._held.clear()

    def num_missing(self, num_tokens: int) -> int:
        """Cells that are too few for `num_tokens` beside what all slots hold; 0 where there are enough."""
        return max(0, self.num_held + num_tokens - self.num_cells)

    def others(self, slot: int) -> list[int]:
        """All other filled slots, least recently used first."""
        return [other for other in self._held if other != slot]

    def victims(self, slot: int, num_tokens: int) -> list[int]:
        """Slots to give up so that `num_tokens` more fit beside what `slot` holds."""
        free = self.num_cells - self.num_held
        victims: list[int] = []
        for other in self.others(slot):
            if free >= num_tokens:
                break
            victims.append(other)
            free += len(self._held[other])
        return victims
