"""Text to token ids and back, as the canvas needs it. The runtime that owns the vocabulary supplies it."""

from typing import Protocol

from dg_lsp.canvas.plan import TokenIds


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
