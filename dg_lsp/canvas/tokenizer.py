"""The tokenizer interface of the canvas, and a cache around it. Backends implement it."""

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


class CachingTokenizer:
    """A `Tokenizer` that caches encoded texts; between two keystrokes most of a prompt stays the same."""

    def __init__(self, inner: Tokenizer, capacity: int = CAPACITY) -> None:
        self._inner = inner
        self.encode, self.decode = lru_cache(capacity)(inner.encode), inner.decode

    def special(self, spelling: str) -> int | None:
        """See `Tokenizer`."""
        return self._inner.special(spelling)
