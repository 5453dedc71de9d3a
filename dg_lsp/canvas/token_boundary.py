"""The safe token boundary before a cursor, and the tokens that spell a text.

Tokenizers such as GPT-2's join a line end with the indentation behind it, and the parts of a word, into one token. A
text that is cut at the cursor may therefore end in tokens that are rare there. The prompt is cut before them, and the
answer begins with the text that the prompt lacks.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence

import numpy as np

from dg_lsp.canvas.layout import TokenIds, token_ids

MAX_UNIT = 64
"""Characters of a unit that are looked at: a line of one letter, megabytes long, must cost nothing."""


def unit_start(text: str) -> int:
    """Offset of the run at the end of a text that a following text may join: white space, a word, or punctuation.

    One space before a word or punctuation belongs to it. At most `MAX_UNIT` characters from the end, and at most the
    length of the text.
    """
    lowest, start = max(0, len(text) - MAX_UNIT), len(text)
    kind = _kind(text[-1]) if text else 0
    while start > lowest and _kind(text[start - 1]) == kind:
        start -= 1
    is_after_space = kind != _SPACE and start > lowest and text[start - 1] == " "
    return start - is_after_space


_SPACE, _WORD, _OTHER = range(3)


def _kind(character: str) -> int:
    """White space, letters and digits, or the rest; an underscore is punctuation, as in GPT-2's expression."""
    return _SPACE if character.isspace() else _WORD if character.isalnum() else _OTHER


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
        return token_ids(np.concatenate([*prefixes, self._between(text, text + _HIGHEST)]))

    def _between(self, first: bytes, last: bytes) -> TokenIds:
        """The tokens from `first` to `last` in the order of their bytes, both included."""
        return self._ids[bisect_left(self._pieces, first) : bisect_right(self._pieces, last)]


_HIGHEST = b"\xff"
"""Follows all bytes of UTF-8 texts."""
