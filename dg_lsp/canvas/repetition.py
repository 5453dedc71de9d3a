"""Repetition: continuations that the buffer itself predicts, from n-grams over all of it.

A cache model as in Hellendoorn and Devanbu, "Are deep neural networks the best choice for modeling source code?"
(2017), reduced to its most confident case: the last tokens occurred before, and the same token always followed them.
Works on token ids, without a model.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from dg_lsp.canvas.layout import TokenIds, token_ids
from dg_lsp.canvas.tokenizer import Tokenizer

MIN_MATCH, MAX_MATCH = 3, 12
"""Shortest and longest n-gram, in tokens."""
ONCE = 2
"""Additional tokens that must match an n-gram with a single occurrence, which may be a coincidence."""
CHARS_BEFORE, CHARS_AFTER = 32_000, 12_000
"""Characters of the buffer before and after the cursor that are searched."""
_LINES = re.compile(r"[^\n]*\n+|[^\n]+")
_CACHED_LINES = 16_384
_BORDER = -1
"""Separator: no n-gram extends across it."""


@dataclass(frozen=True, slots=True)
class RepetitionMatch:
    """The predicted token and its probability."""

    token: int
    confidence: float


class Repetition:
    """N-grams of the buffer around one cursor."""

    def __init__(
        self,
        before: TokenIds,
        after: TokenIds,
        min_match: int = MIN_MATCH,
        ends_line: Callable[[int], bool] = lambda _: False,
    ) -> None:
        """Takes the tokens before and after the cursor, shape (N,) each, and the shortest n-gram to trust."""
        self._ends_line = ends_line
        self._min_match = min_match
        self._text = np.concatenate([after, [_BORDER], before]).astype(np.int32)
        self._tail = before[-MAX_MATCH:]
        self._found: dict[bytes, RepetitionMatch | None] = {}
        """By the bytes of the fill: passes of one request search the same fills again and again."""

    def following(self, fill_ids: TokenIds) -> RepetitionMatch | None:
        """The token after a partial fill of shape (N,), or None if the buffer has no or several continuations.

        Applies to the first line of a fill only: otherwise a copy would reinforce itself line by line.
        """
        key = fill_ids.tobytes()
        if key not in self._found:
            self._found[key] = self._search(fill_ids)
        return self._found[key]

    def _search(self, fill_ids: TokenIds) -> RepetitionMatch | None:
        if any(map(self._ends_line, fill_ids.tolist())):
            return None
        last = np.concatenate([self._tail, fill_ids])[-MAX_MATCH:]
        text = self._text
        if len(last) < MIN_MATCH or len(text) <= MIN_MATCH:
            return None
        a, b, c = last[-3:]
        ends = np.flatnonzero(text[2:-1] == c) + MIN_MATCH
        ends = ends[(text[ends - 2] == b) & (text[ends - 3] == a)]
        size = MIN_MATCH
        while size < len(last):
            longer = ends[ends > size]
            longer = longer[text[longer - size - 1] == last[-size - 1]]
            if not len(longer):
                break
            ends, size = longer, size + 1
        followers = text[ends]
        needed = self._min_match + (len(followers) < 2) * ONCE
        is_sure = len(followers) and size >= needed and (followers == followers[0]).all()
        if not is_sure or followers[0] == _BORDER:
            return None
        return RepetitionMatch(int(followers[0]), _confidence(size, len(followers)))

    def run(self, fill_ids: TokenIds, most: int) -> TokenIds:
        """Repeats `following` for up to `most` tokens; shape (0..most,)."""
        ids = fill_ids
        while len(ids) < len(fill_ids) + most and (match := self.following(ids)):
            ids = np.append(ids, np.int32(match.token))
        return ids[len(fill_ids) :]


def _confidence(size: int, copies: int) -> float:
    """Measured precision at 450 held-out positions; 0.5 for three tokens with one earlier occurrence."""
    return 1.0 - 1.5 / (size + 3.0 * min(copies - 1, 3))


class BufferTokens:
    """Tokens of buffers, cached line by line, so that a keystroke tokenizes one line. Owned by the engine."""

    def __init__(self, tokenizer: Tokenizer, min_match: int = MIN_MATCH) -> None:
        self._min_match = min_match
        self._ends_line = lru_cache(None)(lambda token: b"\n" in tokenizer.decode(token_ids([token])))
        self._encode: Callable[[str], TokenIds] = lru_cache(_CACHED_LINES)(tokenizer.encode)

    def repetition(self, text: str, offset: int, suffix_lines: int | None = None) -> Repetition:
        """N-grams around a code-point offset; `suffix_lines` limits the lines after the cursor's own."""
        start = max(0, offset - CHARS_BEFORE)
        if start:
            start = text.find("\n", start, offset) + 1 or offset
        after = text[offset : offset + CHARS_AFTER]
        if suffix_lines is not None:
            after = "\n".join(after.split("\n", suffix_lines + 1)[: suffix_lines + 1])
        return Repetition(self._ids(text[start:offset]), self._ids(after), self._min_match, self._ends_line)

    def _ids(self, text: str) -> TokenIds:
        return token_ids(np.concatenate([[], *(self._encode(line) for line in _LINES.findall(text))]))
