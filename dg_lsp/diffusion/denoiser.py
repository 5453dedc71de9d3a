"""What the denoising loop asks of a model runtime. Logits never cross this line."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dg_lsp.canvas.layout import TokenIds
from dg_lsp.canvas.spec import ModelSpec

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """One forward pass over one canvas of length L, reduced per position."""

    argmax_ids: TokenIds
    """Shape (L,): the most probable token."""
    sampled_ids: TokenIds
    """Shape (L,): drawn from the tempered distribution; the argmax at temperature 0."""
    confidence: Floats
    """Shape (L,): probability of the argmax, at `temperature` (at 1 when the temperature is 0)."""
    entropy: Floats
    """Shape (L,): nats, of the same distribution as `confidence`."""
    unexpanded_ids: TokenIds | None = None
    """Shape (L,): the most probable token that is no expansion; only of models that know one."""
    unexpanded_confidence: Floats | None = None
    """Shape (L,): its probability if there were no expansions."""


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Of a GPU, whoever uses it; in bytes, 0 where its driver does not say."""

    name: str
    free: int
    total: int


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a model holds of the memory."""

    weights_bytes: int = 0
    cache_bytes: int = 0
    """Keys and values of prompts, used or not."""
    cache_cells: int = 0
    """Tokens that there is room for by now."""
    cache_limit: int = 0
    """Tokens that room may be made for."""
    cache_used: int = 0
    """Tokens of the prompts that are kept."""
    devices: tuple[DeviceMemory, ...] = ()
    """GPUs that it runs on."""


class Denoiser(Protocol):
    """A model with a KV cache of several slots, one prompt each.

    For mask noise a position that holds a token already predicts that token with confidence 1 and entropy 0:
    runtimes compute logits at masks only. Ids in `spec.banned_ids` are never predicted.
    """

    @property
    def spec(self) -> ModelSpec:
        """Noise kind, special ids, canvas lengths, defaults."""
        ...

    @property
    def num_slots(self) -> int:
        """Slots are numbered 0 to `num_slots - 1`."""
        ...

    @property
    def footprint(self) -> Footprint:
        """What it holds of the memory; for any thread."""
        ...

    def prefill(self, slot: int, prompt_ids: TokenIds) -> int:
        """Makes the slot hold exactly this prompt; returns how many tokens really had to be decoded.

        Keeps the longest common prefix with what the slot held.

        Raises:
            RequestError: the prompt is longer than the context, or has ids outside the vocabulary.
            ModelMemoryError: the context would have to grow for it, and there is no memory; nothing has changed.
            BackendError: the runtime failed; the slot is empty then.
        """
        ...

    def predict(
        self,
        slot: int,
        canvases: Sequence[TokenIds],
        temperature: float,
        rng: np.random.Generator,
        lanes: Sequence[int] = (),
    ) -> list[Prediction]:
        """One forward pass over all canvases at once, each standing alone right after the slot's prompt.

        Attention is bidirectional inside a canvas; canvases do not see each other. The cache is as before
        afterwards. A model that is conditioned on its own last prediction of a canvas keeps it by lane until the
        slot's next `prefill`.

        Args:
            slot: whose prompt the canvases follow.
            canvases: token ids of shape (L,) each.
            temperature: of what is sampled.
            rng: draws the samples.
            lanes: which of the prompt's canvases these are, ascending; empty for the first so many.

        Raises:
            RequestError: a canvas is empty or too long, there are too many, or ids are outside the vocabulary.
            ModelMemoryError: as of `prefill`.
            BackendError: the runtime failed.
        """
        ...

    def extend(self, slot: int, ids: TokenIds) -> Prediction:
        """One causal forward pass that appends ids to what the slot holds; position i predicts what follows `ids[i]`.

        Greedy: the samples are the argmax. The slot holds the ids afterwards as if they had been prefilled; a later
        `prefill` takes back what turns out to be wrong. Only where `spec.has_causal_head`.

        Raises:
            RequestError: there are no ids, too many for one pass or for the slot, or some are outside the vocabulary.
            ModelMemoryError: as of `prefill`.
            BackendError: the runtime failed, and the slot is empty then; or it cannot go on causally.
        """
        ...

    def close(self) -> None:
        """Gives the runtime's memory back; no call may follow."""
        ...
