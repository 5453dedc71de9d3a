"""Text to token ids and back, as the canvas needs it. The runtime that owns the vocabulary supplies it."""

from functools import lru_cache
from typing import Protocol

from dg_lsp.canvas.layout import TokenIds


class Tokenizer(Protocol):
    """A byte-level vocabulary: any ids decode to bytes, which may end inside a character."""

    def encode(self, text: str) -> TokenIds:
        """Ids of plain text; sentinels written in the text are text, never special tokens."""
        ...

    def decode(self, ids: TokenIds) -> bytes:
        """UTF-8 bytes of the ids; special tokens decode to nothing."""
        ...

    def special(self, spelling: str) -> int | None:
        """The one token that is spelled so in the vocabulary, as chat templates write it; None without one."""
        ...


CAPACITY = 256
"""Texts; a prompt has a handful, and one for each chunk from elsewhere."""


class CachingTokenizer:
    """See `Tokenizer`. Ids are read-only, so that they may be handed out again."""

    def __init__(self, inner: Tokenizer, capacity: int = CAPACITY) -> None:
        self._inner = inner
        self._encoded = lru_cache(capacity)(inner.encode)

    def encode(self, text: str) -> TokenIds:
        """As the inner tokenizer's."""
        return self._encoded(text)

    def decode(self, ids: TokenIds) -> bytes:
        """As the inner tokenizer's."""
        return self._inner.decode(ids)

    def special(self, spelling: str) -> int | None:
        """As the inner tokenizer's."""
        return self._inner.special(spelling)
