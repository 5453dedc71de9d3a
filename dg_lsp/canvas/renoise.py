"""Partial renoise: canvases that begin as the code that is there, with some of its tokens turned back into noise.

After SDEdit (arXiv 2108.01073), for tokens: how much noise is put back says how far the result may get from the start.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from dg_lsp.canvas.layout import NOTHING, Layout, noise
from dg_lsp.canvas.plan import CanvasPlan, TokenIds, token_ids
from dg_lsp.canvas.spec import ModelSpec, PromptFormat, Sampling, UniformSampling


def renoised(ids: TokenIds, strength: float, spec: ModelSpec, rng: np.random.Generator) -> TokenIds:
    """Shape (N,): the ids, a share `strength` of them, one at least, replaced by masks or random tokens."""
    num_noisy = max(1, round(strength * len(ids)))
    where = rng.choice(len(ids), min(num_noisy, len(ids)), replace=False)
    canvas = np.array(ids)
    canvas[where] = noise(spec, len(where), rng)
    return token_ids(canvas)


def from_there_on(sampling: Sampling, strength: float) -> Sampling:
    """The part of the schedule that is left: uniform noise of a share `strength` is where so many steps are left."""
    if not isinstance(sampling, UniformSampling):
        return sampling
    num_steps = max(1, round(strength * sampling.max_denoising_steps))
    hottest = sampling.t_min + strength * (sampling.t_max - sampling.t_min)
    return replace(sampling, max_denoising_steps=num_steps, t_max=hottest)


class Renoising:
    """One selection as canvases, one after the other: each stands after what became of those before it."""

    def __init__(
        self, layout: Layout, ids: TokenIds, spec: ModelSpec, strength: float, rng: np.random.Generator
    ) -> None:
        """`ids`, shape (N,), are the selection's; `layout` is the place of it, with nothing of it in the prompt."""
        self._layout = layout
        self._ids = ids
        self._spec = spec
        self._strength = strength
        self._rng = rng
        self.result_ids = NOTHING
        """What became of the canvases so far; the caller adds to it with `settle`."""

    def __iter__(self) -> Iterator[CanvasPlan]:
        """A canvas at a time, as long as the model takes them."""
        head_ids, prompt_ids = self._layout.head_ids, self._layout.prompt_ids
        at = 0
        while at < len(self._ids):
            room = self._spec.longest_block - len(head_ids) - 1
            piece = self._ids[at : at + max(1, room)]
            at += len(piece)
            tail_ids = self._after(room - len(piece) + 1) if at >= len(self._ids) else NOTHING
            noisy = renoised(piece, self._strength, self._spec, self._rng)
            frozen = np.ones(len(head_ids) + len(noisy) + len(tail_ids), np.bool_)
            frozen[len(head_ids) : len(head_ids) + len(noisy)] = False
            known = prompt_ids if len(head_ids) else np.concatenate([prompt_ids, self.result_ids])
            yield CanvasPlan(token_ids(known), np.concatenate([head_ids, noisy, tail_ids]), frozen)
            prompt_ids, head_ids = token_ids(np.concatenate([prompt_ids, head_ids])), NOTHING

    def settle(self, ids: TokenIds) -> None:
        """What became of the last canvas's free part."""
        self.result_ids = token_ids(np.concatenate([self.result_ids, ids]))

    def _after(self, room: int) -> TokenIds:
        """What the last canvas has to meet: the code that follows, or the token that ends a middle."""
        if self._spec.prompt_format is PromptFormat.FIM:
            return token_ids(self._spec.end_ids[:1])
        return self._layout.tail_ids[: max(0, room)]
