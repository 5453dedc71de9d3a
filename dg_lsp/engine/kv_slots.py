"""Which prompt each slot of the KV cache holds, and for which client."""

from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from dg_lsp.canvas.layout import NOTHING, TokenIds, common_prefix_length
from dg_lsp.diffusion.denoiser import WHOLE_PROMPT, Denoiser


@dataclass(frozen=True, slots=True)
class SlotState:
    """One slot at a moment."""

    num_tokens: int  # of the prompt that it holds
    is_busy: bool  # for a request that has begun and not ended


class KVSlots:
    """Which prompt each slot holds, least recently used first. Not thread-safe: owned by the engine.

    A client's prompt is nothing for the others: what is reused, and how fast, would reveal it.
    """

    def __init__(self, num_slots: int) -> None:
        self._held: OrderedDict[int, TokenIds] = OrderedDict((slot, NOTHING) for slot in range(num_slots))
        self._clients: dict[int, Hashable] = {}
        self._writers: dict[int, Hashable] = {}
        self.user: object = None  # the request that used the model last
        self.is_crowded = False  # there was no memory for two prompts at a time
        self._busy: tuple[int, ...] = ()  # slots of requests that have begun and not ended

    @contextmanager
    def in_use(self, slot: int) -> Iterator[None]:
        """Lists the slot as busy in the `with` block."""
        self._busy = (*self._busy, slot)
        try:
            yield
        finally:
            at = self._busy.index(slot)
            self._busy = (*self._busy[:at], *self._busy[at + 1 :])

    def choose(self, prompt_ids: TokenIds, client: Hashable = 0, taken: Sequence[int] = (), *, slot: int = -1) -> int:
        """The client's slot that shares half of the prompt or of what it holds, start and end; none of those `taken`.

        Without such a slot, the least recently used. Slots of requests that have not ended are used only where all are
        in use. A `slot` that exists is taken as it is.
        """
        if slot in self._held:
            self._held.move_to_end(slot)
            return slot
        possible = [slot for slot in self._held if slot not in taken]
        free = [slot for slot in possible if slot not in self._busy] or possible
        shared = {slot: self.num_alike(slot, prompt_ids, client) for slot in free}
        best = max(shared, key=lambda slot: shared[slot])
        if 2 * shared[best] < min(len(prompt_ids), len(self._held[best])):
            best = next(iter(shared))
        self._held.move_to_end(best)
        return best

    @property
    def states(self) -> tuple[SlotState, ...]:
        """All slots by number; for any thread."""
        held, busy = dict(self._held), self._busy
        return tuple(SlotState(len(held[slot]), slot in busy) for slot in sorted(held))

    def num_missing(self, prompt_ids: TokenIds, client: Hashable = 0) -> int:
        """Tokens of the prompt that the client's best slot lacks."""
        return len(prompt_ids) - max(self.num_alike(slot, prompt_ids, client) for slot in self._held)

    def num_shared(self, slot: int, prompt_ids: TokenIds, client: Hashable = 0) -> int:
        """How many of the prompt's first tokens the slot holds for the client."""
        return common_prefix_length(self._of(slot, client), prompt_ids)

    def hold(self, slot: int, prompt_ids: TokenIds, client: Hashable = 0) -> None:
        """Records that the slot holds this prompt now."""
        self._held[slot], self._clients[slot] = prompt_ids, client

    def is_foreign(self, slot: int, client: Hashable) -> bool:
        """Whether another client's prompt must be removed before this client writes to the slot, as it does now."""
        writer, self._writers[slot] = self._writers.get(slot, client), client
        return writer != client

    def prefill(
        self, denoiser: Denoiser, slot: int, prompt_ids: TokenIds, client: Hashable, most: int = WHOLE_PROMPT
    ) -> int:
        """See `Passes.prefill`; nothing of another client's prompt is reused."""
        if self.is_foreign(slot, client):
            denoiser.prefill(slot, NOTHING)
        return denoiser.prefill(slot, prompt_ids, most)

    def num_alike(self, slot: int, prompt_ids: TokenIds, client: Hashable = 0) -> int:
        """First and last tokens that the slot's prompt has in common with this one."""
        num_shared, held = self.num_shared(slot, prompt_ids, client), self._of(slot, client)
        return num_shared + common_prefix_length(held[num_shared:][::-1], prompt_ids[num_shared:][::-1])

    def _of(self, slot: int, client: Hashable) -> TokenIds:
        return self._held[slot] if self._clients.get(slot, client) == client else NOTHING
