"""Training batches: documents packed into rows, and the canvases that are denoised beside them.

A canvas sees the tokens of its document before it, which are encoded causally, and its own positions in both
directions. Inference with a cached prompt does the same. All canvases of a batch have the same length, so that a CPU
can compute their attention as dense products; a canvas may use fewer positions. Masks are drawn later, on the device.
"""

import os
from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from dg_training.documents import DocumentStream, TrainingDocument
from dg_training.store import read_texts
from dg_training.tokenizer import END_OF_MIDDLE, END_OF_TEXT

Int = npt.NDArray[np.int32]
Bool = npt.NDArray[np.bool_]

MIN_PLAIN = 24  # tokens; less free space of a row stays empty
SHORT_CANVAS = 0.25  # share of canvases that do not use all positions
CANVAS_FIELDS = ("start", "context_start", "length", "num_content", "is_middle", "target")
BATCHES_AHEAD = 4  # batches that a loader process prepares


@dataclass(frozen=True, slots=True)
class RowConfig:
    """Shape of a batch: rows of `num_clean` packed tokens, each with `num_noisy` canvas positions."""

    num_rows: int
    num_clean: int
    num_noisy: int
    max_middle: int  # tokens
    canvas_lengths: tuple[int, ...] = (8, 16, 32, 64)
    canvas_shares: tuple[float, ...] = (0.15, 0.40, 0.30, 0.15)
    max_copies: int = 4  # how often a middle is denoised in one row, with other canvases and masks
    start_ids: tuple[int, ...] = ()  # first tokens of every document

    @property
    def max_prompt(self) -> int:
        """Longest prefix and suffix together, in tokens, so that every document fits a row."""
        return self.num_clean - self.max_middle - 4 - len(self.start_ids)


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """R rows, T clean tokens, C canvases of L positions.

    tokens, document, position (R, T): the document of each token, -1 at padding, and its position in it.
    in_middle (R, T) bool: a middle and its end token.
    start, context_start (R, C): a canvas begins at clean token `start` and sees [context_start, start).
    length, num_content (R, C): positions in use, and how many of them come before the fill (repeated end tokens).
    is_middle (R, C) bool: the canvas is on a middle. target (R, C, L): the right token of every position.
    """

    tokens: Int
    document: Int
    position: Int
    in_middle: Bool
    start: Int
    context_start: Int
    length: Int
    num_content: Int
    is_middle: Bool
    target: Int


class _Placed(NamedTuple):
    """A document in a row: clean tokens [start, end), of which [middle, end) are its middle."""

    start: int
    middle: int
    end: int


class BatchStream:
    """An endless, seeded stream of batches."""

    def __init__(self, documents: DocumentStream, config: RowConfig) -> None:
        self.documents = documents
        self.config = config
        self.rng = documents.rng
        self.waiting: deque[TrainingDocument] = deque()

    def batch(self) -> TrainingBatch:
        """The next batch."""
        canvas_length = int(self.rng.choice(self.config.canvas_lengths, p=self.config.canvas_shares))
        rows = [self._row(canvas_length) for _ in range(self.config.num_rows)]
        return TrainingBatch(*(np.stack([getattr(r, name) for r in rows]) for name in TrainingBatch.__slots__))

    def _row(self, canvas_length: int) -> TrainingBatch:
        """One row without the batch axis. Canvases that are not needed have the length 0."""
        num_clean = self.config.num_clean
        num = self.config.num_noisy // canvas_length
        tokens = np.full(num_clean, END_OF_TEXT, np.int32)
        document = np.full(num_clean, -1, np.int32)
        position = np.zeros(num_clean, np.int32)
        in_middle = np.zeros(num_clean, bool)
        start, context_start, length, num_content = np.zeros((4, num), np.int32)
        is_middle = np.zeros(num, bool)
        target = np.zeros((num, canvas_length), np.int32)
        placed = []
        at = 0
        for i, doc in enumerate(self._documents_of_row()):
            end = at + len(doc.ids)
            tokens[at:end] = doc.ids
            document[at:end] = i
            position[at:end] = np.arange(len(doc.ids))
            in_middle[at + doc.middle : end] = True
            placed.append(_Placed(at, at + doc.middle, end))
            at = end
        for i, (doc_placed, first, size) in enumerate(self._canvases(placed, canvas_length)):
            content = tokens[first : min(doc_placed.end, first + size)]
            start[i] = first
            context_start[i] = doc_placed.start
            length[i] = size
            num_content[i] = len(content)
            is_middle[i] = doc_placed.middle <= first
            target[i] = END_OF_MIDDLE
            target[i, : len(content)] = content
        return TrainingBatch(
            tokens, document, position, in_middle, start, context_start, length, num_content, is_middle, target
        )

    def _documents_of_row(self) -> list[TrainingDocument]:
        """Documents in order of arrival. One that does not fit waits for the next row; plain text fills the rest."""
        packed = []
        free = self.config.num_clean
        while True:
            if not self.waiting:
                self.waiting.append(self.documents.infill_document())
            if len(self.waiting[0].ids) > free:
                break
            packed.append(self.waiting.popleft())
            free -= len(packed[-1].ids)
        if free >= MIN_PLAIN:
            packed.append(self.documents.plain_document(free))
        return packed

    def _canvases(self, documents: list[_Placed], canvas_length: int) -> list[tuple[_Placed, int, int]]:
        """Document, start and length of canvases that cover every middle up to `max_copies` times, then any text."""
        num = self.config.num_noisy // canvas_length
        rng = self.rng
        canvases: list[tuple[_Placed, int, int]] = []
        for document in documents * self.config.max_copies:
            at = document.middle
            while at < document.end and len(canvases) < num:
                canvases.append((document, at, self._length(canvas_length)))
                at += canvases[-1][2]
        texts = [document for document in documents if document.middle - document.start > 8]
        while len(canvases) < num and texts:
            document = texts[int(rng.integers(len(texts)))]
            at = int(rng.integers(document.start + 1, document.middle - 4))
            canvases.append((document, at, min(self._length(canvas_length), document.middle - at)))
        return canvases

    def _length(self, canvas_length: int) -> int:
        is_short = self.rng.random() < SHORT_CANVAS
        return int(self.rng.integers(canvas_length // 2, canvas_length)) if is_short else canvas_length


@dataclass(frozen=True, slots=True)
class RowSource:
    """The corpus that `data` prepared in the folder `root`, in the tokens of a model."""

    root: Path
    tokenizer: Tokenizer
    config: RowConfig

    def stream(self, split: str, seed: int) -> BatchStream:
        """The batches of a split."""
        config = self.config
        files = read_texts(self.root / f"{split}.jsonl.xz")
        shape = (config.max_prompt, config.max_middle, seed, config.start_ids)
        return BatchStream(DocumentStream(files, self.tokenizer, *shape), config)

    def training_batches(self, seed: int, num_processes: int) -> Generator[TrainingBatch]:
        """Training batches from loader processes in a fixed order. Without processes they are made in this one."""
        yield from DataLoader(
            _TrainingBatches(self, seed),
            batch_size=None,
            num_workers=num_processes,
            prefetch_factor=BATCHES_AHEAD if num_processes else None,
            multiprocessing_context="spawn" if num_processes else None,
        )


class _TrainingBatches(IterableDataset[TrainingBatch]):
    """The endless batches of each loader process."""

    def __init__(self, source: RowSource, seed: int) -> None:
        super().__init__()
        self.source = source
        self.seed = seed

    def __iter__(self) -> Iterator[TrainingBatch]:
        worker = get_worker_info()
        if worker:
            os.environ["TOKENIZERS_PARALLELISM"] = "false"
        stream = self.source.stream("train", self.seed + (worker.id if worker else 0))
        while True:
            yield stream.batch()
