"""The tokenizer interface of the canvas, and a cache around it. Backends implement it."""

from collections.abc import Callable
from functools import lru_cache
from typing import Protocol

from dg_lsp.canvas.layout import TokenIds


class Tokenizer(Protocol):
    """A byte-level vocabulary: ids decode to bytes, which may end inside a character."""

    def encode(self, text: str) -> TokenIds:
        """Ids of plain text; sentinels that are spelled in the text stay text."""
        ...

    def decode(self, ids: TokenIds) -> bytes:
        """UTF-8 bytes of the ids; special tokens decode to nothing."""
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

    def special(self, spelling: str) -> int | None:
        """See `Tokenizer`."""
        return self._inner.special(spelling)
