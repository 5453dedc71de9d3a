"""Documents -> batches: rows of packed clean tokens and the canvases that are denoised beside them.

A canvas sees the clean tokens of its document before it (causally encoded) and its own slots in both directions:
exactly what the runtime does with a cached prompt. Canvases of one batch have one slot count, so that a CPU can do
their attention as a dense product; a canvas may use fewer slots, as after an accepted end token. Masks are drawn
later, on the device.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dg_lsp.training.config import RowConfig
from dg_lsp.training.documents import Document, Documents
from dg_lsp.training.resizing import resized_truth
from dg_lsp.training.vocabulary import END_OF_MIDDLE, END_OF_TEXT

Int = npt.NDArray[np.int32]
MIN_PLAIN = 24  # slots; a smaller rest of a row stays empty
AHEAD = 64  # documents made at once
OF_CANVASES = {"start", "low", "length", "content", "is_middle", "truth"}  # fields of a batch
SHORT_CANVAS = 0.25  # share of canvases that use fewer slots than they have


@dataclass(frozen=True, slots=True)
class Batch:
    """R rows, T clean tokens, C canvases of L slots.

    tokens, document, position (R, T): document is -1 at padding, positions count from the document's start;
    in_middle (R, T) bool: M and its end token. start, low (R, C): a canvas begins at clean slot `start` and sees
    [low, start). length, content (R, C): slots in use, and how many of them are not fill. is_middle (R, C) bool.
    truth (R, C, L): what every slot should become.
    """

    tokens: Int
    document: Int
    position: Int
    in_middle: npt.NDArray[np.bool_]
    start: Int
    low: Int
    length: Int
    content: Int
    is_middle: npt.NDArray[np.bool_]
    truth: Int


@dataclass(frozen=True, slots=True)
class Placed:
    """A document's place in a row: clean slots [low, high), and where its middle starts (or -1)."""

    low: int
    high: int
    middle: int


class Rows:
    """An endless stream of batches."""

    def __init__(self, documents: Documents, config: RowConfig) -> None:
        self.documents, self.config, self.rng = documents, config, documents.rng
        self.waiting: deque[Document] = deque()

    def __iter__(self) -> Iterator[Batch]:
        while True:
            yield self.batch()

    def state(self) -> dict[str, Any]:
        """What continues this stream: the generator and the documents that wait for a row."""
        return {"rng": self.rng.bit_generator.state, "waiting": [(doc.ids, doc.middle) for doc in self.waiting]}

    def restore(self, state: dict[str, Any]) -> None:
        """Continues where `state` was taken."""
        self.rng.bit_generator.state = state["rng"]
        self.waiting = deque(Document(ids, middle) for ids, middle in state["waiting"])

    def batch(self) -> Batch:
        """The next batch; its canvases share one slot count."""
        config = self.config
        slots = int(self.rng.choice(config.canvas_lengths, p=config.canvas_shares))
        return collate([self._row(slots) for _ in range(config.rows)], config.num_noisy // slots)

    def _row(self, slots: int) -> Batch:
        packed = self._pack()
        tokens = np.full(self.config.num_clean, END_OF_TEXT, np.int32)
        document, position = np.full_like(tokens, -1), np.zeros_like(tokens)
        in_middle = np.zeros(len(tokens), bool)
        places, at = [], 0
        for i, doc in enumerate(packed):
            end = at + len(doc.ids)
            tokens[at:end], document[at:end], position[at:end] = doc.ids, i, np.arange(len(doc.ids))
            middle = at + doc.middle if doc.middle >= 0 else -1
            if middle >= 0:
                in_middle[middle:end] = True
            places.append(Placed(at, end, middle))
            at = end
        canvases = self._canvases(places, slots)
        row = _with_canvases(tokens, document, position, in_middle, canvases, slots)
        if self.config.resized_share:
            self._resize(row, canvases)
        return row

    def _resize(self, row: Batch, canvases: list[tuple[Placed, int, int]]) -> None:
        """Some canvases on middles hold all that is left of theirs, whatever their length (`resizing.py`)."""
        for i, (place, at, used) in enumerate(canvases):
            rest = row.tokens[at : place.high - 1]  # without the end token
            if row.is_middle[i] and self.rng.random() < self.config.resized_share:
                resized = resized_truth(rest, used, self.rng)
                if resized is not None:
                    row.truth[i, :used], row.content[i] = resized.truth, resized.content

    def _pack(self) -> list[Document]:
        """Documents in order of arrival; one that does not fit waits for the next row, whole."""
        packed, free = [], self.config.num_clean
        is_plain = self.config.plain_share > 0 and self.rng.random() < self.config.plain_share
        while not is_plain:
            if not self.waiting:
                self.waiting.extend(self.documents.fims(AHEAD))
            if len(self.waiting[0].ids) > free:
                break
            packed.append(self.waiting.popleft())
            free -= len(packed[-1].ids)
        while free >= MIN_PLAIN:
            packed.append(self.documents.plain(free))
            free = free - len(packed[-1].ids) if is_plain else 0
        return packed

    def _canvases(self, places: list[Placed], slots: int) -> list[tuple[Placed, int, int]]:
        """(document, first clean slot, slots in use): every middle tiled again and again, then anywhere in the text."""
        num, rng = self.config.num_noisy // slots, self.rng
        found: list[tuple[Placed, int, int]] = []
        middles = [place for place in places if place.middle >= 0]
        for _ in range(self.config.max_copies):
            for place in middles:
                at = place.middle
                while at < place.high and len(found) < num:
                    used = self._used(slots)
                    found.append((place, at, used))
                    at += used
        texts = [p for p in places if (p.middle if p.middle >= 0 else p.high) - p.low > 8]
        while len(found) < num and texts:
            place = texts[int(rng.integers(len(texts)))]
            high = place.middle if place.middle >= 0 else place.high
            at = int(rng.integers(place.low + 1, high - 4))
            found.append((place, at, min(self._used(slots), high - at)))
        return found

    def _used(self, slots: int) -> int:
        return int(self.rng.integers(slots // 2, slots)) if self.rng.random() < SHORT_CANVAS else slots


def _with_canvases(
    tokens: Int,
    document: Int,
    position: Int,
    in_middle: npt.NDArray[np.bool_],
    canvases: list[tuple[Placed, int, int]],
    slots: int,
) -> Batch:
    num = len(canvases)
    truth = np.full((num, slots), END_OF_MIDDLE, np.int32)
    start, low, length, content = (np.zeros(num, np.int32) for _ in range(4))
    is_middle = np.zeros(num, bool)
    for i, (place, at, used) in enumerate(canvases):
        known = tokens[at : min(place.high, at + used)]
        truth[i, : len(known)] = known
        start[i], low[i], length[i], content[i] = at, place.low, used, len(known)
        is_middle[i] = 0 <= place.middle <= at
    return Batch(tokens, document, position, in_middle, start, low, length, content, is_middle, truth)


def collate(rows: list[Batch], num_canvases: int) -> Batch:
    """Single rows stacked to a batch; a row with fewer canvases gets empty ones, so that shapes never change."""
    arrays: dict[str, Any] = {}
    for name in Batch.__slots__:
        parts = [getattr(row, name) for row in rows]
        if name in OF_CANVASES:
            parts = [np.pad(part, [(0, num_canvases - len(part))] + [(0, 0)] * (part.ndim - 1)) for part in parts]
        arrays[name] = np.stack(parts)
    return Batch(**arrays)
