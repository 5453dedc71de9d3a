"""Token ids: the interface of tokenizers; canvas and layout, ids to be denoised after a cached prompt, some frozen."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dg_lsp.canvas.spec import MaskSampling, ModelSpec, PromptFormat, Sampling, UniformSampling

TokenIds = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]


def token_ids(ids: npt.ArrayLike) -> TokenIds:
    """Ids as a read-only int32 array of shape (N,)."""
    array = np.array(ids, dtype=np.int32).reshape(-1)
    array.setflags(write=False)
    return array


def among(ids: TokenIds, wanted: TokenIds) -> Flags:
    """Flags of the ids that occur in a short list, shape (N,). Several times faster than `numpy.isin` at this size."""
    found: Flags = ids == wanted[0] if len(wanted) == 1 else (ids[:, None] == wanted).any(axis=1)
    return found


def common_prefix_length(a: TokenIds, b: TokenIds) -> int:
    """Length of the longest common prefix."""
    shortest = min(len(a), len(b))
    differs = np.flatnonzero(a[:shortest] != b[:shortest])
    return int(differs[0]) if len(differs) else shortest


class Tokenizer(Protocol):
    """A byte-level vocabulary: ids decode to bytes, which may end inside a character."""

    def encode(self, text: str) -> TokenIds:
        """Ids of plain text; sentinels that are spelled in the text stay text."""
        ...

    def decode(self, ids: TokenIds) -> bytes:
        """UTF-8 bytes of the ids; special tokens decode to nothing."""
        ...

    def pieces(self) -> list[bytes]:
        """UTF-8 bytes of all tokens, by id."""
        ...

    def special(self, spelling: str) -> int | None:
        """The special token with this spelling, as in chat templates, or None."""
        ...


CAPACITY = 256
"""Number of cached texts; a prompt has a handful, and one for each snippet."""
MAX_CHARS = 1 << 16
"""Characters of a cached text: a conversation may be much longer than any prompt."""


def caching(encode: Callable[[str], TokenIds], capacity: int, max_chars: int) -> Callable[[str], TokenIds]:
    """The function with a cache of its last texts; longer texts are encoded each time, so that memory is bounded."""
    cached = lru_cache(capacity)(encode)
    return lambda text: cached(text) if len(text) <= max_chars else encode(text)


class CachingTokenizer:
    """A `Tokenizer` that caches encoded texts; between two keystrokes most of a prompt stays the same."""

    def __init__(self, inner: Tokenizer, capacity: int = CAPACITY) -> None:
        self._inner = inner
        self.encode, self.decode = caching(inner.encode, capacity, MAX_CHARS), inner.decode

    def pieces(self) -> list[bytes]:
        """See `Tokenizer`."""
        return self._inner.pieces()

    def special(self, spelling: str) -> int | None:
        """See `Tokenizer`."""
        return self._inner.special(spelling)


@dataclass(frozen=True, slots=True, eq=False)
class Canvas:
    """The prompt in the KV cache, and the block that is denoised after it."""

    prompt_ids: TokenIds  # shape (P,): encoded causally, cached
    canvas_ids: TokenIds  # shape (L,): the canvas before the first step; free positions hold masks or noise
    frozen: Flags  # shape (L,): positions with known text; never changed and excluded from every mean

    @classmethod
    def around(cls, free_ids: TokenIds, prompt_ids: TokenIds, head_ids: TokenIds, tail_ids: TokenIds) -> "Canvas":
        """Free positions between a frozen head and a frozen tail."""
        frozen = np.repeat([True, False, True], [len(head_ids), len(free_ids), len(tail_ids)])
        return cls(prompt_ids, np.concatenate([head_ids, free_ids, tail_ids]), frozen)


NOTHING = token_ids([])


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Prompt, then head, gap and tail of a canvas. Without head and tail the canvas is open."""

    prompt_ids: TokenIds  # shape (P,): encoded causally, cached
    head_ids: TokenIds = field(default_factory=lambda: NOTHING)
    """Frozen before the gap: the end of the prefix, or the beginning of an answer."""
    tail_ids: TokenIds = field(default_factory=lambda: NOTHING)
    """Frozen after the gap, as far as the canvas has room: the beginning of the suffix."""
    before_ids: TokenIds = field(default_factory=lambda: NOTHING)
    """The code before the gap, in the prompt or in the canvas."""
    after_ids: TokenIds = field(default_factory=lambda: NOTHING)
    """The code after the gap, in the prompt or in the canvas."""
    removed: bytes = b""
    """The end of the code before the gap, where the prompt lacks it: the fill begins with these bytes."""
    stop: str = ""  # a line with this beginning ends the fill like an end token; empty: none does

    @property
    def num_known(self) -> int:
        """Number of tokens before the gap: prompt and head."""
        return len(self.prompt_ids) + len(self.head_ids)

    def canvas(self, num_free: int, spec: ModelSpec, rng: np.random.Generator, *, length: int = 0) -> Canvas:
        """Head, `num_free` tokens of noise, and as much of the tail as fits into `length` (0: no tail)."""
        tail_ids = self.tail_ids[: max(0, length - len(self.head_ids) - num_free)]
        return Canvas.around(noise(spec, num_free, rng), self.prompt_ids, self.head_ids, tail_ids)

    def in_prompt(self) -> "Layout":
        """The layout for causal decoding: the head becomes part of the prompt, and the tail is dropped."""
        if not (len(self.head_ids) or len(self.tail_ids)):
            return self
        prompt_ids = token_ids(np.concatenate([self.prompt_ids, self.head_ids]))
        return replace(self, prompt_ids=prompt_ids, head_ids=NOTHING, tail_ids=NOTHING)


OPEN = Layout(NOTHING)
"""An empty prompt and an open canvas."""


def noise(spec: ModelSpec, length: int, rng: np.random.Generator) -> TokenIds:
    """Masks, or random tokens for uniform noise; shape (length,)."""
    if isinstance(spec.sampling, MaskSampling):
        return np.full(length, spec.sampling.mask_id, np.int32)
    return rng.integers(0, spec.vocab_size, length, dtype=np.int32)


def end_of(ids: TokenIds, room: int, ahead: int = 0) -> TokenIds:
    """The last tokens that fit, cut in steps of an eighth of the room, so that a cached prompt rarely moves.

    The start is that of `ahead` more tokens.
    """
    excess = len(ids) + min(ahead, room // 2) - room
    if excess <= 0:
        return ids
    stride = max(1, room // 8)
    return ids[-(-excess // stride) * stride :]


def renoised(ids: TokenIds, strength: float, spec: ModelSpec, rng: np.random.Generator) -> TokenIds:
    """Shape (N,): the ids with a fraction `strength` of them (at least one) replaced by masks or random tokens."""
    num_noisy = max(1, round(strength * len(ids)))
    where = rng.choice(len(ids), min(num_noisy, len(ids)), replace=False)
    canvas = np.array(ids)
    canvas[where] = noise(spec, len(where), rng)
    return token_ids(canvas)


def resume_sampling(sampling: Sampling, strength: float) -> Sampling:
    """The rest of the schedule for a canvas of which only a fraction `strength` is noise (uniform noise only)."""
    if not isinstance(sampling, UniformSampling):
        return sampling
    num_steps = max(1, round(strength * sampling.max_denoising_steps))
    hottest = sampling.t_min + strength * (sampling.t_max - sampling.t_min)
    return replace(sampling, max_denoising_steps=num_steps, t_max=hottest)


@dataclass(slots=True, eq=False)
class Renoise:
    """Splits a selection into canvases; each canvas follows the results of the canvases before it."""

    layout: Layout  # the code around the selection, without it
    ids: TokenIds  # shape (N,): the selection
    spec: ModelSpec
    strength: float
    rng: np.random.Generator
    result_ids: TokenIds = field(default_factory=lambda: NOTHING)
    """Tokens of the finished canvases; the caller appends to them with `settle`."""

    def __iter__(self) -> Iterator[Canvas]:
        """The canvases in order, each at most as long as the model's longest."""
        head_ids, prompt_ids = self.layout.head_ids, self.layout.prompt_ids
        at = 0
        while at < len(self.ids):
            room = self.spec.longest_block - len(head_ids) - 1
            piece = self.ids[at : at + max(1, room)]
            at += len(piece)
            tail_ids = self._after(room - len(piece) + 1) if at >= len(self.ids) else NOTHING
            noisy = renoised(piece, self.strength, self.spec, self.rng)
            known = prompt_ids if len(head_ids) else np.concatenate([prompt_ids, self.result_ids])
            yield Canvas.around(noisy, token_ids(known), head_ids, tail_ids)
            prompt_ids, head_ids = token_ids(np.concatenate([prompt_ids, head_ids])), NOTHING

    def settle(self, ids: TokenIds) -> None:
        """Appends the result of the last canvas's free part."""
        self.result_ids = token_ids(np.concatenate([self.result_ids, ids]))

    def _after(self, room: int) -> TokenIds:
        """Frozen end of the last canvas: the code that follows, or the token that ends a middle."""
        if self.spec.prompt_format is PromptFormat.FIM:
            return token_ids(self.spec.end_ids[:1])
        return self.layout.tail_ids[: max(0, room)]
