"""Repetition: a confident n-gram of the buffer around one cursor overrides the prediction of a small model.

A cache model as in Hellendoorn and Devanbu, "Are deep neural networks the best choice for modeling source code?"
(2017), reduced to its most confident case: the last tokens occurred before, and the same token always followed them.
It depends on the text left of a position, so of a canvas only the leftmost masks are overridden.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from dg_lsp.canvas.layout import TokenIds, Tokenizer, caching, token_ids
from dg_lsp.canvas.spec import MIN_MATCH
from dg_lsp.diffusion.denoiser import Prediction

MAX_MATCH = 12
"""Longest n-gram, in tokens."""
ONCE = 2
"""Additional tokens that must match an n-gram with a single occurrence, which may be a coincidence."""
CHARS_BEFORE, CHARS_AFTER = 32_000, 12_000
"""Characters of the buffer before and after the cursor that are searched."""
_LINES = re.compile(r"[^\n]*\n+|[^\n]+")
_CACHED_LINES, _MAX_LINE = 16_384, 500
"""Lines that are cached, and characters of one: a longer line is another one after every key typed into it."""
BORDER = -1  # a separator: no n-gram extends across it


def searchable(after: TokenIds, before: TokenIds) -> TokenIds:
    """The tokens around a cursor, those after it first, for `copies`; shape (12 + A + 1 + B,)."""
    margin = np.full(MAX_MATCH, BORDER - 1, np.int32)  # keeps windows of `MAX_MATCH` tokens inside the array
    return np.concatenate([margin, after, margin[:1] + 1, before])


def copies(text: TokenIds, last: TokenIds) -> tuple[TokenIds, TokenIds]:
    """Where copies of the end of `last` end in a searchable text, and how long each is, at least 2; shape (N,) each."""
    ends = np.flatnonzero(text[:-1] == last[-1]) + 1
    ends = ends[text[ends - 2] == last[-2]]
    if not len(ends):  # the usual case, and the rest takes longer than all before it
        return ends, ends
    is_same = text[ends[:, None] - np.arange(1, len(last) + 1)] == last[::-1]
    return ends, np.logical_and.accumulate(is_same, axis=1).sum(axis=1)


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
        self._text = searchable(after, before)
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
        last = np.concatenate([self._tail, fill_ids])[-MAX_MATCH:]
        if len(last) < MIN_MATCH or any(map(self._ends_line, fill_ids.tolist())):
            return None
        ends, sizes = copies(self._text, last)
        if not len(ends):
            return None
        size = int(sizes.max())
        followers = self._text[ends[sizes == size]]
        needed = max(MIN_MATCH, self._min_match) + (len(followers) < 2) * ONCE
        if size < needed or followers[0] == BORDER or (followers != followers[0]).any():
            return None
        return RepetitionMatch(int(followers[0]), _confidence(size, len(followers)))

    def overridden(self, prediction: Prediction, fill_ids: TokenIds, positions: Iterable[int]) -> Prediction:
        """The prediction with repetitions at consecutive positions, the first of which follows `fill_ids`."""
        if self.following(fill_ids) is None:  # the usual case, without copies
            return prediction
        argmax_ids, sampled_ids = prediction.argmax_ids.copy(), prediction.sampled_ids.copy()
        confidence, sampled_confidence = prediction.confidence.copy(), prediction.sampled_confidence.copy()
        fill = fill_ids
        for at in positions:
            match = self.following(fill)
            if match is None:
                break
            fill = np.append(fill, np.int32(match.token))
            agrees = argmax_ids[at] == match.token
            confidence[at] = max(confidence[at], match.confidence) if agrees else match.confidence
            if sampled_ids[at] == argmax_ids[at] or sampled_ids[at] == match.token:
                sampled_ids[at], sampled_confidence[at] = match.token, confidence[at]
            else:  # the other tokens share what the match leaves
                sampled_confidence[at] = min(sampled_confidence[at], 1 - confidence[at])
            argmax_ids[at] = match.token
        return replace(
            prediction,
            argmax_ids=argmax_ids,
            sampled_ids=sampled_ids,
            confidence=confidence,
            sampled_confidence=sampled_confidence,
        )

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
    """Tokens of buffers, cached by line, so that a keystroke tokenizes one line. Owned by the engine."""

    def __init__(self, tokenizer: Tokenizer, min_match: int = MIN_MATCH) -> None:
        self._min_match = min_match
        self._ends_line = lru_cache(None)(lambda token: b"\n" in tokenizer.decode(token_ids([token])))
        self._encode = caching(tokenizer.encode, _CACHED_LINES, _MAX_LINE)

    def repetition(self, text: str, offset: int, *, num_removed: int = 0) -> Repetition:
        """The n-grams around a code-point offset. The fill begins `num_removed` characters before it."""
        end = offset - num_removed
        before = text[max(0, end - CHARS_BEFORE) : end]
        after = text[offset : offset + CHARS_AFTER]
        if len(before) < end:  # a line that is cut has other tokens
            before = before[before.find("\n") + 1 or len(before) :]
        return Repetition(self._ids(before), self._ids(after), self._min_match, self._ends_line)

    def _ids(self, text: str) -> TokenIds:
        return token_ids(np.concatenate([[], *(self._encode(line) for line in _LINES.findall(text))]))
