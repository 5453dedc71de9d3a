"""Corrections: what the buffer around one cursor knows better than a small model.

A confident repetition and a known attribute override the prediction. Both depend on the text left of a position, so of
a canvas only the leftmost masks are corrected.

Repetitions are a cache model as in Hellendoorn and Devanbu, "Are deep neural networks the best choice for modeling
source code?" (2017), reduced to its most confident case: the last tokens occurred before, and the same token always
followed them. Attributes are the names that the buffer knows behind an object and a dot: where it knows some, a token
that neither begins nor completes one of them gives way to the best token that does.
"""

import re
from collections.abc import Callable, Iterator, Sequence
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
_PRIMES, _NUM_HASHES = (31 * 31 * 31, 31), 2**16
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
        # the margin keeps windows of `MAX_MATCH` tokens inside the array
        margin = np.full(MAX_MATCH, _BORDER - 1, np.int32)
        self._text = text = np.concatenate([margin, after, margin[:1] + 1, before])
        self._tail = before[-MAX_MATCH:]
        self._last = before[-MIN_MATCH:].tolist()
        low = text[:-1].astype(np.uint16)
        self._hashes = (low[:-2] * np.uint16(_PRIMES[0])) + (low[1:-1] * np.uint16(_PRIMES[1])) + low[2:]
        """Shape (N,): of every three tokens that a token follows."""
        known = np.zeros(_NUM_HASHES, np.bool_)
        known[self._hashes] = True
        self._is_known = known.tobytes()
        """By hash. Most n-grams are new, and this finds out at once: a model evicts larger arrays from the cache."""
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
        tokens = fill_ids.tolist()
        last_tokens = tokens[-MIN_MATCH:] if len(tokens) >= MIN_MATCH else (self._last + tokens)[-MIN_MATCH:]
        if len(last_tokens) < MIN_MATCH:
            return None
        a, b, c = last_tokens
        hashed = (a * _PRIMES[0] + b * _PRIMES[1] + c) % _NUM_HASHES
        if not self._is_known[hashed] or any(map(self._ends_line, tokens)):
            return None
        text, last = self._text, np.concatenate([self._tail, fill_ids])[-MAX_MATCH:]
        ends = np.flatnonzero(self._hashes == hashed) + MIN_MATCH
        is_same = text[ends[:, None] - np.arange(1, len(last) + 1)] == last[::-1]
        sizes = np.logical_and.accumulate(is_same, axis=1).sum(axis=1)
        size = int(sizes.max())
        ends = ends[sizes == size]
        followers = text[ends]
        needed = max(MIN_MATCH, self._min_match) + (len(followers) < 2) * ONCE
        if size < needed or followers[0] == _BORDER or (followers != followers[0]).any():
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
    """Tokens of buffers, cached by line and by name, so that a keystroke tokenizes one line. Owned by the engine."""

    def __init__(self, tokenizer: Tokenizer, min_match: int = MIN_MATCH) -> None:
        self._min_match, self._decode = min_match, tokenizer.decode
        self._ends_line = lru_cache(None)(lambda token: b"\n" in tokenizer.decode(token_ids([token])))
        self._encode = caching(tokenizer.encode, _CACHED_LINES, _MAX_LINE)

    def corrections(
        self,
        text: str,
        offset: int,
        suffix_lines: int | None = None,
        *,
        has_attributes: bool,
        num_removed: int = 0,
    ) -> "Corrections":
        """What the buffer around a code-point offset knows; `suffix_lines` limits the lines after the cursor's own.

        The fill begins `num_removed` characters before the offset.
        """
        end = offset - num_removed
        before, after = text[max(0, end - CHARS_BEFORE) : end], text[offset : offset + CHARS_AFTER]
        if suffix_lines is not None:
            after = "\n".join(after.split("\n", suffix_lines + 1)[: suffix_lines + 1])
        attributes = Attributes(before, after, self._encode, self._decode) if has_attributes else None
        if len(before) < end:  # a line that is cut has other tokens
            before = before[before.find("\n") + 1 or len(before) :]
        repetition = Repetition(self._ids(before), self._ids(after), self._min_match, self._ends_line)
        return Corrections(repetition, attributes)

    def _ids(self, text: str) -> TokenIds:
        return token_ids(np.concatenate([[], *(self._encode(line) for line in _LINES.findall(text))]))


MAX_LINE = 400  # characters before the cursor in which an object may begin
_NAME = r"[^\W\d]\w*"
_REVERSED_ACCESS = re.compile(r"(\w*)\.(\w+(?:\.\w+)*\.?)")  # of a reversed line: matched once, not at each character
_WORD = re.compile(rb"[\w\x80-\xff]*")
_SELF = frozenset(("self", "cls", "this"))
_METHOD, _FIELD = re.compile(r"def[ \t]+(\w+)"), re.compile(r"\n    (\w+): ")
"""What a class defines, as Python writes it; each begins with a text that is found fast."""


@dataclass(frozen=True, slots=True, eq=False)
class KnownNames:
    """The names that the beginning of a name, or none yet, may become."""

    names: tuple[bytes, ...]  # all longer than the beginning
    begun: bytes
    ids: TokenIds  # shape (N,): the first tokens of what is missing of those that are offered
    decode: Callable[[TokenIds], bytes]

    def are_contradicted(self, ids: TokenIds) -> bool:
        """Whether tokens of shape (N,) make another name, or end the begun one."""
        text = self.decode(ids)
        match = _WORD.match(text)
        word = match[0] if match else b""
        if word and len(word) == len(text):
            return not any(name.startswith(self.begun + word) for name in self.names)
        return self.begun + word not in self.names


class Attributes:
    """The attributes that the buffer around one cursor knows."""

    def __init__(
        self, before: str, after: str, encode: Callable[[str], TokenIds], decode: Callable[[TokenIds], bytes]
    ) -> None:
        """Takes the text before and after the cursor. `encode` should cache: each key needs the same names again."""
        self._line = before[-MAX_LINE:].rpartition("\n")[2]
        access = _access(self._line)
        # a name that is being typed is no evidence
        self._texts = before[: len(before) - len(access[1])] if access else before, after
        self._encode, self._decode = encode, decode
        self._names: dict[str, frozenset[str]] = {}
        self._known: dict[tuple[str, str], KnownNames | None] = {}

    def following(self, fill_ids: TokenIds) -> KnownNames | None:
        """The names that may follow a partial fill of shape (N,); None where no attribute of a known object follows."""
        line = (self._line + self._decode(fill_ids).decode("utf-8", "replace")).rpartition("\n")[2]
        access = _access(line)
        if access is None:
            return None
        if access not in self._known:
            self._known[access] = self._known_names(*access)
        return self._known[access]

    def _known_names(self, chain: str, begun: str) -> KnownNames | None:
        names = [name for name in sorted(self._names_of(chain)) if name.startswith(begun)]
        entered = self._entered_methods() if chain in _SELF else set()
        offered = [name for name in names if name not in entered]  # a recursion is for the model to begin
        if not offered or begun in names:  # a complete name may go on as anything
            return None
        ids = sorted({int(self._encode(name[len(begun) :])[0]) for name in offered})
        return KnownNames(tuple(name.encode() for name in names), begun.encode(), token_ids(ids), self._decode)

    def _names_of(self, chain: str) -> frozenset[str]:
        """The attributes that the buffer uses of a chain of names, or else of its last name."""
        if chain not in self._names:
            found = set() if chain.startswith(".") else set(self._used(chain, is_whole=True))
            if chain in _SELF:
                found |= {name for text in self._texts for one in (_METHOD, _FIELD) for name in one.findall(text)}
            self._names[chain] = frozenset(found or self._used(chain.rpartition(".")[2], is_whole=False))
        return self._names[chain]

    def _entered_methods(self) -> set[str]:
        """The methods whose body contains the cursor, by indentation."""
        text, width, found = self._texts[0], len(self._line) - len(self._line.lstrip()), set()
        for match in reversed(list(_METHOD.finditer(text))):
            head = text[text.rfind("\n", 0, match.start()) + 1 : match.start()]
            indent = len(head) - len(head.lstrip())
            if 0 < indent < width and head.strip() in ("", "async"):
                found.add(match[1])
                width = indent
        return found

    def _used(self, chain: str, *, is_whole: bool) -> Iterator[str]:
        pattern = re.compile(rf"{re.escape(chain)}\.({_NAME})")
        for text in self._texts:
            for match in pattern.finditer(text):
                before = text[match.start() - 1 : match.start()]
                if not (before.isalnum() or before == "_" or (is_whole and before == ".")):
                    yield match[1]


def _access(line: str) -> tuple[str, str] | None:
    """The object and the beginning of its attribute at the end of a line; a dot before the object if it has one."""
    match = _REVERSED_ACCESS.match(line[::-1])
    if match is None or match[2][-1].isdigit():  # a number
        return None
    return match[2][::-1], match[1][::-1]


KNOWN_SHARE = 0.75
"""Assumed probability that the right attribute is among the known ones, where the model predicts another name.

The buffer knows it at 63 of 73 tuning places, those where the model agrees included.
"""


@dataclass(frozen=True, slots=True)
class Corrections:
    """The sources of one request; without any, nothing is corrected."""

    repetition: Repetition | None = None
    attributes: Attributes | None = None

    def after(self, fills: Sequence[TokenIds]) -> "PassCorrections":
        """The corrections of a pass at positions with these partial fills before them, shape (N,) each."""
        attributes = self.attributes
        names = [attributes.following(fill) if attributes else None for fill in fills]
        return PassCorrections(self, fills, names)


NO_CORRECTIONS = Corrections()


@dataclass(frozen=True, slots=True)
class PassCorrections:
    """Corrections of one pass, by the number of the partial fill."""

    sources: Corrections
    fills: Sequence[TokenIds]
    names: Sequence[KnownNames | None]

    @property
    def among(self) -> list[TokenIds]:
        """The sets of tokens of which the pass must return the best ones."""
        return [one.ids for one in self._different]

    @property
    def _different(self) -> list[KnownNames]:
        return list(dict.fromkeys(one for one in self.names if one is not None))

    def corrected(self, prediction: Prediction, number: int, positions: Sequence[int]) -> Prediction:
        """The prediction with corrections from the first position on, which follows the fill with this number."""
        repetition, fill, matches = self.sources.repetition, self.fills[number], list[tuple[int, RepetitionMatch]]()
        for at in positions:
            match = repetition.following(fill) if repetition else None
            if match is None and not matches:
                match = self._attribute(prediction, number, at)
            if match is None:
                break
            matches.append((at, match))
            fill = np.append(fill, np.int32(match.token))
        return overridden(prediction, matches)

    def _attribute(self, prediction: Prediction, number: int, at: int) -> RepetitionMatch | None:
        """The best token of a known name, if the predicted one makes another name."""
        names = self.names[number]
        if names is None or prediction.among_ids is None or prediction.among_share is None:
            return None
        if not names.are_contradicted(prediction.argmax_ids[at : at + 1]):
            return None
        column = self._different.index(names)
        share = float(prediction.among_share[at, column])
        return RepetitionMatch(int(prediction.among_ids[at, column]), KNOWN_SHARE * share)


def overridden(prediction: Prediction, matches: Sequence[tuple[int, RepetitionMatch]]) -> Prediction:
    """The prediction with a corrected token at each of these positions."""
    if not matches:
        return prediction
    argmax_ids, sampled_ids = prediction.argmax_ids.copy(), prediction.sampled_ids.copy()
    confidence, sampled_confidence = prediction.confidence.copy(), prediction.sampled_confidence.copy()
    for at, match in matches:
        agrees = argmax_ids[at] == match.token
        confidence[at] = max(confidence[at], match.confidence) if agrees else match.confidence
        if sampled_ids[at] == argmax_ids[at] or sampled_ids[at] == match.token:
            sampled_ids[at], sampled_confidence[at] = match.token, confidence[at]
        else:  # the other tokens share what the correction leaves
            sampled_confidence[at] = min(sampled_confidence[at], 1 - confidence[at])
        argmax_ids[at] = match.token
    return replace(
        prediction,
        argmax_ids=argmax_ids,
        sampled_ids=sampled_ids,
        confidence=confidence,
        sampled_confidence=sampled_confidence,
    )
