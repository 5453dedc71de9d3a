"""What a plan gets, and what it gives."""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dg_lsp.canvas.echo import Echo
from dg_lsp.canvas.layout import Layout
from dg_lsp.canvas.plan import TokenIds
from dg_lsp.diffusion.denoiser import Denoiser
from dg_lsp.diffusion.step import Step
from dg_lsp.engine.draft import Draft
from dg_lsp.engine.enough import Enough
from dg_lsp.engine.limits import Limits


@dataclass(frozen=True, slots=True, eq=False)
class Progress:
    """The first candidate after one forward pass."""

    block: int
    """0 for the first canvas; a longer fill goes on in further ones. Always 0 without canvases."""
    number: int
    """Passes so far, counted over the whole request."""
    step: Step
    """The canvas, or its hole where some is frozen; without one, the fill so far and what is guessed to follow."""
    draft: Draft


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """One request as every plan sees it."""

    denoiser: Denoiser
    limits: Limits
    enough: Enough
    rng: np.random.Generator
    echo: Echo | None = None
    """What the denoiser hears of the buffer, where it does."""

    @property
    def max_length(self) -> int:
        """Tokens of prompt and fill together after which a fill gets no further."""
        spec = self.denoiser.spec
        return spec.max_prompt_tokens + spec.longest_block


class Filling(Protocol):
    """One plan at work on one request."""

    def prefill(self, slot: int, prompt_ids: TokenIds, num_kept: int) -> int:
        """Readies the slot, which holds the prompt's first `num_kept` tokens; how many tokens have to be decoded.

        Raises:
            RequestError, BackendError: as the denoiser's `prefill` does.
        """
        ...

    def run(self, slot: int, layout: Layout) -> Generator[Progress, None, tuple[Draft, ...]]:
        """One value per forward pass, then the drafts of all candidates.

        Raises:
            RequestError, BackendError: as the denoiser does.
        """
        ...
