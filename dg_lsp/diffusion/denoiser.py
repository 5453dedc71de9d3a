"""The interface of a model runtime. Logits stay inside the runtime."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dg_lsp.canvas.layout import TokenIds
from dg_lsp.canvas.spec import ModelSpec, UniformSampling
from dg_lsp.errors import BackendError

if TYPE_CHECKING:
    from dg_lsp.diffusion.samplers import Step

Floats = npt.NDArray[np.float32]
Canvases = Sequence[TokenIds]
Rng = np.random.Generator
Lanes = Sequence[int]
"""Numbers of canvases among the canvases of a prompt, ascending; empty means 0, 1, 2, ..."""
Allowed = Mapping[int, TokenIds]
"""By position of a causal pass: the only tokens that may follow. Any token may follow the other positions."""
WHOLE_PROMPT = 1 << 30
"""More tokens than any prompt has."""


@dataclass(frozen=True, slots=True)
class TopK:
    """The most probable tokens of each position, from which a pass draws."""

    size: int  # 1 or more, and fewer than the vocabulary has
    counts_tail: bool = False
    """Entropies are those of the whole vocabulary; otherwise those of the `size` tokens, which are lower."""


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """One forward pass over one canvas of length L, reduced per position."""

    argmax_ids: TokenIds  # shape (L,): the most probable token
    sampled_ids: TokenIds  # shape (L,): drawn from the tempered distribution; the argmax at temperature 0
    confidence: Floats  # shape (L,): probability of the argmax, at `temperature` (at 1 when the temperature is 0)
    entropy: Floats  # shape (L,): nats, of the same distribution as `confidence`, or see `TopK`
    sampled_confidence: Floats  # shape (L,): probability of the sampled token, in the same distribution
    unexpanded_ids: TokenIds | None = None
    """Shape (L,): the most probable token except the expansion token; set only by models that have one."""
    unexpanded_confidence: Floats | None = None  # shape (L,): its probability when the expansion token is excluded


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Memory of one GPU in bytes, for all its users; 0 where the driver does not report it."""

    name: str
    free: int
    total: int


@dataclass(frozen=True, slots=True)
class Footprint:
    """Memory that a model holds, and how it runs."""

    weights_bytes: int = 0
    cache_bytes: int = 0  # keys and values of prompts, free cells included
    cache_cells: int = 0  # tokens that fit into the cache at its present size
    cache_limit: int = 0  # tokens that fit after the cache has grown to its limit
    cache_used: int = 0  # tokens of the cached prompts
    devices: tuple[DeviceMemory, ...] = ()  # GPUs that the model runs on
    context_size: int = 0  # tokens of prompt and canvas that one slot takes; 0: unknown
    gpu_estimate: int = 0  # bytes on the GPUs as they were estimated before loading, for the present cache
    busy_slots: tuple[bool, ...] = ()
    """Whether each slot of the cache has a request that has begun and not ended; empty where a server has the slots."""

    @property
    def full_cache_bytes(self) -> int:
        """Bytes of the cache after it has grown to its limit."""
        return self.cache_limit * self.cache_bytes // max(1, self.cache_cells)


class Denoiser(ABC):
    """A model in memory, with a KV cache of several slots, one prompt each.

    With mask noise, a position that already holds a token predicts that token with confidence 1 and entropy 0:
    runtimes compute logits at masks only. Ids in `spec.banned_ids` are never predicted.
    """

    spec: ModelSpec  # noise kind, special ids, canvas lengths, defaults
    num_slots: int  # slots are numbered 0 to `num_slots - 1`
    moves_suffix: bool = False  # keeps the states of a suffix when the prefix before it changes

    @abstractmethod
    def predict(
        self, slot: int, canvases: Canvases, temperature: float, rng: Rng, lanes: Lanes = (), top_k: TopK | None = None
    ) -> list[Prediction]:
        """One forward pass over all canvases (shape (L,) each) at once, each alone right after the slot's prompt.

        Attention is bidirectional inside a canvas; canvases do not see each other. The cache is unchanged afterwards.
        A self-conditioned model keeps its last prediction of each canvas, by lane, until the slot's next `prefill`.
        Without `top_k`, tokens are drawn from all; probabilities are always those of the whole vocabulary.

        Raises:
            RequestError: a canvas is empty or too long, there are too many, or ids are outside the vocabulary.
            ModelMemoryError: see `prefill`.
            BackendError: the runtime failed.
        """

    def predict_chain(
        self, slot: int, step: "Step", sampling: UniformSampling, rng: Rng, lane: int
    ) -> list[tuple[Prediction, TokenIds]]:
        """The predictions of up to `stop_interval` steps, each with its noise, over canvases as `renoise` makes them.

        Empty if the host has to choose each canvas. Raises as `predict` does.
        """
        del slot, step, sampling, rng, lane
        return []

    @abstractmethod
    def prefill(self, slot: int, prompt_ids: TokenIds, most: int = WHOLE_PROMPT) -> int:
        """Makes the slot hold exactly this prompt, or decodes the next `most` tokens of it, up to a whole block.

        Returns the number of tokens that were decoded, fewer than `most` if the slot lacks none any more. The longest
        common prefix with the slot's previous content is kept. Where the suffix follows the prefix, a runtime
        may also keep the suffix's states when the prefix changes; see `refresh`.

        Raises:
            RequestError: the prompt is longer than the context, or has ids outside the vocabulary.
            ModelMemoryError: the context would have to grow, and there is no memory; the slot is unchanged.
            BackendError: the runtime failed; the slot is empty afterwards.
        """

    def extend(self, slot: int, ids: TokenIds, allowed: Allowed | None = None) -> Prediction:
        """One causal forward pass that appends ids to the slot; position i predicts the token after `ids[i]`.

        Greedy: the samples are the argmax. Where only some tokens are allowed, all others have the probability 0.
        Afterwards the slot holds the ids as if they had been prefilled; a later `prefill` removes wrong ones. Requires
        `spec.has_causal_head`.

        Raises:
            RequestError: no ids, too many for one pass or for the slot, or ids outside the vocabulary.
            ModelMemoryError: see `prefill`.
            BackendError: the runtime failed and the slot is empty, or the model cannot decode causally.
        """
        del slot, ids, allowed
        raise BackendError(f"{self.spec.name} has no causal head; use the decoder diffusion")

    @property
    @abstractmethod
    def footprint(self) -> Footprint:
        """Memory that the model holds. Thread-safe."""

    def refresh(self, slot: int) -> int:
        """One short pass that decodes again kept states that have not seen an edit of the prefix.

        Returns the number of tokens, 0 if the slot is exact, as it always is without kept states. The slot may lose
        what follows its suffix. Raises as `prefill` does.
        """
        del slot
        return 0

    @abstractmethod
    def close(self) -> None:
        """Frees the runtime's memory. Idempotent; no other call may follow."""
