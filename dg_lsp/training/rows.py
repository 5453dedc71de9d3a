"""Batches: rows of packed documents, and the canvases that are denoised beside them.

A canvas sees the tokens of its document before it, which are encoded causally, and its own positions in both
directions. Inference with a cached prompt does the same. All canvases of a batch have the same length, so that a CPU
can compute their attention as dense products; a canvas may use fewer positions. Masks are drawn later, on the device.
"""

import multiprocessing as mp
import os
import queue
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from dg_lsp.training.documents import DocumentStream, TrainingDocument, load_store
from dg_lsp.training.tokenizer import END_OF_MIDDLE, END_OF_TEXT, load_tokenizer

Int = npt.NDArray[np.int32]
Bool = npt.NDArray[np.bool_]
StreamState: TypeAlias = dict[str, Any]

MIN_PLAIN = 24  # tokens; less free space of a row stays empty
DOCUMENTS_AHEAD = 64  # documents made at once
SHORT_CANVAS = 0.25  # share of canvases that do not use all positions
CANVAS_FIELDS = ("start", "context_start", "length", "num_content", "is_middle", "target")
QUEUE_LENGTH = 4  # batches that a loader process prepares in advance
POLL_SECONDS = 5.0


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

    @property
    def max_prompt(self) -> int:
        """Longest prefix and suffix together, in tokens, so that every document fits a row."""
        return self.num_clean - self.max_middle - 4


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


@dataclass(frozen=True, slots=True)
class _Placed:
    """A document in a row: clean tokens [start, end); its middle starts at `middle`, or -1."""

    start: int
    end: int
    middle: int


@dataclass(frozen=True, slots=True)
class _Canvas:
    document: _Placed
    start: int
    length: int


class BatchStream:
    """An endless, seeded stream of batches."""

    def __init__(self, documents: DocumentStream, config: RowConfig) -> None:
        self.documents, self.config, self.rng = documents, config, documents.rng
        self.waiting: deque[TrainingDocument] = deque()

    def state(self) -> StreamState:
        """The random generator and the documents that wait for a row: what `restore` needs."""
        return {"rng": self.rng.bit_generator.state, "waiting": [(doc.ids, doc.middle) for doc in self.waiting]}

    def restore(self, state: StreamState) -> None:
        """Continue where `state` was taken."""
        self.rng.bit_generator.state = state["rng"]
        self.waiting = deque(TrainingDocument(ids, middle) for ids, middle in state["waiting"])

    def batch(self) -> TrainingBatch:
        """The next batch."""
        config = self.config
        canvas_length = int(self.rng.choice(config.canvas_lengths, p=config.canvas_shares))
        return _stack([self._row(canvas_length) for _ in range(config.num_rows)], config.num_noisy // canvas_length)

    def _row(self, canvas_length: int) -> TrainingBatch:
        tokens = np.full(self.config.num_clean, END_OF_TEXT, np.int32)
        document, position = np.full_like(tokens, -1), np.zeros_like(tokens)
        in_middle = np.zeros(len(tokens), bool)
        placed, at = [], 0
        for i, doc in enumerate(self._documents_of_row()):
            end = at + len(doc.ids)
            tokens[at:end], document[at:end], position[at:end] = doc.ids, i, np.arange(len(doc.ids))
            middle = at + doc.middle if doc.middle >= 0 else -1
            if middle >= 0:
                in_middle[middle:end] = True
            placed.append(_Placed(at, end, middle))
            at = end
        canvases = self._canvases(placed, canvas_length)
        return TrainingBatch(tokens, document, position, in_middle, *_canvas_arrays(tokens, canvases, canvas_length))

    def _documents_of_row(self) -> list[TrainingDocument]:
        """Documents in order of arrival. One that does not fit waits for the next row; plain text fills the rest."""
        packed, free = [], self.config.num_clean
        while True:
            if not self.waiting:
                self.waiting.extend(self.documents.infill_documents(DOCUMENTS_AHEAD))
            if len(self.waiting[0].ids) > free:
                break
            packed.append(self.waiting.popleft())
            free -= len(packed[-1].ids)
        if free >= MIN_PLAIN:
            packed.append(self.documents.plain_document(free))
        return packed

    def _canvases(self, documents: list[_Placed], canvas_length: int) -> list[_Canvas]:
        """Canvases that cover every middle up to `max_copies` times, then some anywhere in the text."""
        num, rng = self.config.num_noisy // canvas_length, self.rng
        found: list[_Canvas] = []
        middles = [document for document in documents if document.middle >= 0]
        for _ in range(self.config.max_copies):
            for document in middles:
                at = document.middle
                while at < document.end and len(found) < num:
                    found.append(_Canvas(document, at, self._length(canvas_length)))
                    at += found[-1].length
        text_ends = [(d, d.middle if d.middle >= 0 else d.end) for d in documents]
        texts = [(document, end) for document, end in text_ends if end - document.start > 8]
        while len(found) < num and texts:
            document, end = texts[int(rng.integers(len(texts)))]
            at = int(rng.integers(document.start + 1, end - 4))
            found.append(_Canvas(document, at, min(self._length(canvas_length), end - at)))
        return found

    def _length(self, canvas_length: int) -> int:
        is_short = self.rng.random() < SHORT_CANVAS
        return int(self.rng.integers(canvas_length // 2, canvas_length)) if is_short else canvas_length


def _canvas_arrays(tokens: Int, canvases: list[_Canvas], canvas_length: int) -> tuple[Int, Int, Int, Int, Bool, Int]:
    """The arrays of CANVAS_FIELDS for one row."""
    target = np.full((len(canvases), canvas_length), END_OF_MIDDLE, np.int32)
    num_content = np.zeros(len(canvases), np.int32)
    for i, canvas in enumerate(canvases):
        content = tokens[canvas.start : min(canvas.document.end, canvas.start + canvas.length)]
        target[i, : len(content)] = content
        num_content[i] = len(content)
    start = np.array([canvas.start for canvas in canvases], np.int32)
    context_start = np.array([canvas.document.start for canvas in canvases], np.int32)
    length = np.array([canvas.length for canvas in canvases], np.int32)
    is_middle = np.array([0 <= canvas.document.middle <= canvas.start for canvas in canvases], bool)
    return start, context_start, length, num_content, is_middle, target


def _stack(rows: list[TrainingBatch], num_canvases: int) -> TrainingBatch:
    """Rows as one batch. A row with fewer canvases gets empty ones, so that shapes do not change."""
    arrays: dict[str, Any] = {}
    for name in TrainingBatch.__slots__:
        parts = [getattr(row, name) for row in rows]
        if name in CANVAS_FIELDS:
            parts = [np.pad(part, [(0, num_canvases - len(part))] + [(0, 0)] * (part.ndim - 1)) for part in parts]
        arrays[name] = np.stack(parts)
    return TrainingBatch(**arrays)


def open_stream(root: Path, split: str, config: RowConfig, seed: int) -> BatchStream:
    """A stream over a split that `data` prepared."""
    store, tokenizer = load_store(root / split), load_tokenizer(root / "tokenizer.json")
    return BatchStream(DocumentStream(store, tokenizer, config.max_prompt, config.max_middle, seed), config)


@dataclass(frozen=True, slots=True)
class LoaderState:
    """The state of each loader process after its last consumed batch, and which one comes next."""

    streams: tuple[StreamState | None, ...]
    turn: int = 0


class BatchLoader:
    """Training batches from loader processes in a fixed order. Without processes they are made in this one."""

    def __init__(
        self, root: Path, config: RowConfig, seed: int, num_processes: int, state: LoaderState | None = None
    ) -> None:
        num = max(1, num_processes)
        self._states = list(state.streams if state else [None] * num)
        self._turn = state.turn if state else 0
        self._processes: list[Any] = []
        self._sources: list[Callable[[], tuple[TrainingBatch, StreamState]]] = []
        for i, stream_state in enumerate(self._states):
            arguments = (root, config, seed + i, stream_state)
            self._sources.append(self._start_process(arguments) if num_processes else _batches(*arguments).__next__)

    def _start_process(self, arguments: tuple[Any, ...]) -> Callable[[], tuple[TrainingBatch, StreamState]]:
        context = mp.get_context("spawn")
        batches = context.Queue(QUEUE_LENGTH)
        process = context.Process(target=_fill_queue, args=(batches, *arguments), daemon=True)
        process.start()
        self._processes.append(process)
        return partial(_next_batch, batches, process)

    def __iter__(self) -> Iterator[TrainingBatch]:
        while True:
            batch, self._states[self._turn] = self._sources[self._turn]()
            self._turn = (self._turn + 1) % len(self._sources)
            yield batch

    @property
    def state(self) -> LoaderState:
        """What a new loader needs to continue after the last batch of this one."""
        return LoaderState(tuple(self._states), self._turn)

    def close(self) -> None:
        """Stop the processes."""
        for process in self._processes:
            process.terminate()


def _batches(
    root: Path, config: RowConfig, seed: int, state: StreamState | None
) -> Iterator[tuple[TrainingBatch, StreamState]]:
    stream = open_stream(root, "train", config, seed)
    if state:
        stream.restore(state)
    while True:
        yield stream.batch(), stream.state()


def _fill_queue(batches: "mp.Queue[tuple[TrainingBatch, StreamState]]", *arguments: Any) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    for item in _batches(*arguments):
        batches.put(item)


def _next_batch(
    batches: "mp.Queue[tuple[TrainingBatch, StreamState]]", process: Any
) -> tuple[TrainingBatch, StreamState]:
    while True:
        try:
            return batches.get(timeout=POLL_SECONDS)
        except queue.Empty:
            if not process.is_alive():
                raise RuntimeError(f"a loader process ended with exit code {process.exitcode}") from None
