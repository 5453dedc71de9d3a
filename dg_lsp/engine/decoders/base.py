"""What a plan gets, and what it gives."""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dg_lsp.canvas.layout import Layout, TokenIds, among, token_ids
from dg_lsp.canvas.repetition import Repetition
from dg_lsp.canvas.spec import ModelSpec
from dg_lsp.canvas.tokenizer import Tokenizer
from dg_lsp.diffusion.denoiser import Denoiser
from dg_lsp.diffusion.step import Step
from dg_lsp.engine.result import Cell, Frame
from dg_lsp.engine.stop_criteria import Draft, Limits, StopCriteria


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
class DecodeTask:
    """One request as every plan sees it."""

    denoiser: Denoiser
    limits: Limits
    enough: StopCriteria
    rng: np.random.Generator
    echo: Repetition | None = None
    """What the denoiser hears of the buffer, where it does."""

    @property
    def max_length(self) -> int:
        """Tokens of prompt and fill together after which a fill gets no further."""
        spec = self.denoiser.spec
        return spec.max_prompt_tokens + spec.longest_block


class Decoder(Protocol):
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


class Framer:
    """Turns progress into frames."""

    def __init__(self, tokenizer: Tokenizer, spec: ModelSpec) -> None:
        self._tokenizer = tokenizer
        self._end_ids = token_ids(spec.end_ids)

    def frame(self, progress: Progress) -> Frame:
        """The canvas position by position, and the text that is settled."""
        step = progress.step
        ends = among(step.draft_ids, self._end_ids)
        cells = tuple(
            Cell(
                self._text(step.draft_ids[i : i + 1]), float(step.confidence[i]), bool(step.committed[i]), bool(ends[i])
            )
            for i in range(len(step.draft_ids))
        )
        return Frame(progress.block, progress.number, cells, self._text(progress.draft.ids))

    def _text(self, ids: TokenIds) -> str:
        return self._tokenizer.decode(ids).decode("utf-8", "replace")


def gap_of(step: Step) -> Step:
    """The step without the frozen runs at both ends; the very same where nothing is frozen.

    Looks at the step and not at its plan: a model may have made the hole longer or shorter meanwhile.
    """
    where = gap_slice(step)
    if where == slice(0, len(step.frozen)):
        return step
    return step.take(where)


def gap_slice(step: Step) -> slice:
    """Where the free positions are; empty where none is left."""
    free = np.flatnonzero(~step.frozen)
    return slice(int(free[0]), int(free[-1]) + 1) if len(free) else slice(0, 0)
