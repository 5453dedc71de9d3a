"""Token ids and their checks, the interface of tokenizers, and layouts: ids to be denoised after a prompt, some frozen.

Tokenizers such as GPT-2's join a line end with the indentation behind it, and the parts of a word, into one token. A
text that is cut at the cursor may therefore end in tokens that are rare there. `back_up` cuts the prompt before them,
and the answer begins with the text that the prompt lacks.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dg_lsp.canvas.spec import MaskSampling, ModelSpec
from dg_lsp.errors import RequestError

TokenIds = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]


def token_ids(ids: npt.ArrayLike) -> TokenIds:
    """Ids as a read-only int32 array of shape (N,)."""
    array = np.array(ids, dtype=np.int32).reshape(-1)
    array.setflags(write=False)
    return array


def concat(*parts: TokenIds) -> TokenIds:
    """At least one array of ids after the other; shape (N,)."""
    return token_ids(np.concatenate(parts))


def among(ids: TokenIds, wanted: TokenIds) -> Flags:
    """Flags of the ids that occur in a short list, shape (N,). Several times faster than `numpy.isin` at this size."""
    flags: Flags = ids == wanted[0] if len(wanted) == 1 else (ids[:, None] == wanted).any(axis=1)
    return flags


def common_prefix_length(a: TokenIds, b: TokenIds) -> int:
    """Length of the longest common prefix."""
    shortest = min(len(a), len(b))
    differs = np.flatnonzero(a[:shortest] != b[:shortest])
    return int(differs[0]) if len(differs) else shortest


def checked_ids(what: str, ids: npt.ArrayLike, vocab_size: int) -> TokenIds:
    """The ids as an int32 array of shape (N,); raises `RequestError` for an id outside `[0, vocab_size)`."""
    array = np.asarray(ids)
    # An id beyond the embedding table makes ggml abort the process, so the range is checked before any cast.
    if array.size and not (array.min() >= 0 and array.max() < vocab_size):
        bad = int(array.min()) if int(array.min()) < 0 else int(array.max())
        raise RequestError(f"{what}: token id {bad} is outside the vocabulary of {vocab_size}")
    return token_ids(array)


def checked_prompt(ids: npt.ArrayLike, vocab_size: int, limit: int) -> TokenIds:
    """The ids of a prompt; raises `RequestError` for more than `limit`, or if one is out of range."""
    checked = checked_ids("prompt", ids, vocab_size)
    if len(checked) > limit:
        problem = f"the prompt has {len(checked)} tokens, the context takes {limit}"
        raise RequestError(f"{problem}; shorten it, or raise model.context_length")
    return checked


def checked_extension(ids: npt.ArrayLike, vocab_size: int, limit: int) -> TokenIds:
    """The ids of one causal pass; raises `RequestError` for none or more than `limit`, or if one is out of range."""
    checked = checked_ids("extension", ids, vocab_size)
    if not 0 < len(checked) <= limit:
        raise RequestError(f"a causal pass takes 1 to {limit} tokens, not {len(checked)}")
    return checked


def checked_canvases(
    canvases: Sequence[npt.ArrayLike], vocab_size: int, *, max_canvases: int, max_canvas_tokens: int
) -> list[TokenIds]:
    """The canvases of one forward pass.

    Raises:
        RequestError: there are none or too many, one is empty or has an id out of range, or they are too long together.
    """
    if not 0 < len(canvases) <= max_canvases:
        raise RequestError(f"a step takes 1 to {max_canvases} canvases, not {len(canvases)}")
    checked = [checked_ids(f"canvas {number}", canvas, vocab_size) for number, canvas in enumerate(canvases)]
    if not all(len(canvas) for canvas in checked):
        raise RequestError("a canvas needs at least one token")
    if (total := sum(map(len, checked))) > max_canvas_tokens:
        raise RequestError(f"the canvases of one step have {total} tokens together, at most {max_canvas_tokens} fit")
    return checked


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


MAX_UNIT = 64
"""Characters of a unit that are looked at: a line of one letter, megabytes long, must cost nothing."""
_UNIT = re.compile(r"(?:\s+| ?[^\W_]+| ?(?:[^\w\s]|_)+)\Z")  # an underscore is punctuation, as in GPT-2's expression


def unit_start(text: str) -> int:
    """Offset of the run at the end of a text that a following text may join: white space, a word, or punctuation.

    One space before a word or punctuation belongs to it. At most `MAX_UNIT` characters from the end, and at most the
    length of the text.
    """
    end = text[-MAX_UNIT:]
    unit = _UNIT.search(end)
    return len(text) - len(end) + unit.start() if unit else len(text)


def back_up(ids: TokenIds, text: str, decode: Callable[[TokenIds], bytes]) -> tuple[TokenIds, bytes]:
    """The tokens of a text that end at or before its last unit, and the bytes of the others.

    These bytes are the end of the text, or all of it. All tokens are kept where they do not spell the text.
    """
    num_kept, removed = len(ids), b""
    num_bytes = len(text[unit_start(text) :].encode("utf-8", "replace"))
    while num_kept and len(removed) < num_bytes:
        num_kept -= 1
        removed = decode(ids[num_kept : num_kept + 1]) + removed
    if not num_kept:  # a SentencePiece tokenizer puts a blank before the first token
        return ids[:0], text.encode("utf-8", "replace")
    is_end = text[-len(removed) :].encode("utf-8", "replace").endswith(removed)
    return (ids[:num_kept], removed) if is_end else (ids, b"")


class TokenIndex:
    """The tokens of a vocabulary by their bytes."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        """Takes the bytes of each token, by id; tokens without bytes spell nothing."""
        ids = sorted((token for token, piece in enumerate(pieces) if piece), key=pieces.__getitem__)
        self._ids = token_ids(ids)
        self._pieces = [pieces[token] for token in ids]

    def spelling(self, text: bytes) -> TokenIds:
        """The tokens that can come next where the following bytes must begin with `text`, which is not empty.

        A token either begins with the text or is a proper prefix of it. Shape (N,).
        """
        prefixes = (self._between(text[:length], text[:length]) for length in range(1, len(text)))
        return concat(*prefixes, self._between(text, text + b"\xff"))  # a byte above all those of UTF-8

    def _between(self, first: bytes, last: bytes) -> TokenIds:
        return self._ids[bisect_left(self._pieces, first) : bisect_right(self._pieces, last)]


CAPACITY = 256
"""Number of cached texts; a prompt has a handful, and one for each snippet."""
MAX_CHARS = 1 << 16
"""Characters of a cached text: a conversation may be much longer than any prompt."""


class CachingTokenizer:
    """A `Tokenizer` that caches encoded texts; between two keystrokes most of a prompt stays the same."""

    def __init__(self, inner: Tokenizer, capacity: int = CAPACITY) -> None:
        cached = lru_cache(capacity)(inner.encode)
        # longer texts are encoded each time, so that memory is bounded
        self.encode: Callable[[str], TokenIds] = lambda text: (cached if len(text) <= MAX_CHARS else inner.encode)(text)
        self.decode = inner.decode
        self.pieces = inner.pieces
        self.special = inner.special


@dataclass(frozen=True, slots=True, eq=False)
class Canvas:
    """The block that is denoised after the prompt in the KV cache."""

    canvas_ids: TokenIds  # shape (L,): the canvas before the first step; free positions hold masks or noise
    frozen: Flags  # shape (L,): positions with known text; never changed and excluded from every mean

    @classmethod
    def around(cls, free_ids: TokenIds, head_ids: TokenIds, tail_ids: TokenIds) -> "Canvas":
        """Free positions between a frozen head and a frozen tail."""
        frozen = np.repeat([True, False, True], [len(head_ids), len(free_ids), len(tail_ids)])
        return cls(np.concatenate([head_ids, free_ids, tail_ids]), frozen)


NOTHING = token_ids([])
MIN_SUFFIX = 8
"""Tokens of the tail in a canvas, at least, if there are as many."""
PASS_TOKENS = 256
"""Tokens of all canvases of one pass: what every runtime has room for."""


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

    @property
    def num_frozen(self) -> int:
        """Frozen tokens of a canvas, at least: the head, and the beginning of the tail."""
        return len(self.head_ids) + min(MIN_SUFFIX, len(self.tail_ids))

    def shared_pass(self, length: int, spec: ModelSpec) -> tuple[int, tuple[int, ...]]:
        """The length, at most `length`, of canvases that share one pass, and the lengths of their gaps, ascending."""
        num_canvases = len(self._gap_lengths(length, spec))
        length = max(len(self.head_ids) + 1, min(length, PASS_TOKENS // num_canvases))
        return length, self._gap_lengths(length, spec)

    def _gap_lengths(self, length: int, spec: ModelSpec) -> tuple[int, ...]:
        """Gap lengths to try in canvases of this length; a single one without a suffix."""
        lengths = spec.gaps_within(length - self.num_frozen)
        return lengths if len(self.tail_ids) else lengths[-1:]

    def longer_gap(self, gap: int, spec: ModelSpec, max_tokens: int) -> int | None:
        """The next longer gap: twice as long, or as long as fits; None if no longer one fits."""
        most = min(max_tokens, spec.longest_block - self.num_frozen)
        return min(2 * gap, most) if gap < most else None

    def canvas(self, num_free: int, spec: ModelSpec, rng: np.random.Generator, *, length: int = 0) -> Canvas:
        """Head, `num_free` tokens of noise, and as much of the tail as fits into `length` (0: no tail)."""
        tail_ids = self.tail_ids[: max(0, length - len(self.head_ids) - num_free)]
        return Canvas.around(noise(spec, num_free, rng), self.head_ids, tail_ids)

    def in_prompt(self) -> "Layout":
        """The layout for causal decoding: the head becomes part of the prompt, and the tail is dropped."""
        prompt_ids = concat(self.prompt_ids, self.head_ids)
        return replace(self, prompt_ids=prompt_ids, head_ids=NOTHING, tail_ids=NOTHING)


OPEN = Layout(NOTHING)
"""An empty prompt and an open canvas."""


def noise(spec: ModelSpec, length: int, rng: np.random.Generator) -> TokenIds:
    """Masks, or random tokens for uniform noise; shape (length,)."""
    if isinstance(spec.sampling, MaskSampling):
        return np.full(length, spec.sampling.mask_id, np.int32)
    return rng.integers(0, spec.vocab_size, length, dtype=np.int32)


def end_of(ids: TokenIds, room: int, lookahead: int = 0) -> TokenIds:
    """The last tokens that fit, cut in steps of an eighth of the room, so that a cached prompt rarely moves.

    Starts where the tokens will start when `lookahead` more of them follow.
    """
    excess = len(ids) + min(lookahead, room // 2) - room
    if excess <= 0:
        return ids
    stride = max(1, room // 8)
    return ids[-(-excess // stride) * stride :]
