"""A tokenizer that remembers: between two keystrokes all of a prompt but its end stays the same text."""

from functools import lru_cache

from dg_lsp.canvas.plan import TokenIds
from dg_lsp.canvas.tokenizer import Tokenizer

CAPACITY = 256
"""Texts; a prompt has a handful, and one for each chunk from elsewhere."""


class RememberingTokenizer:
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
