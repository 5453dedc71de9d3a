"""Training batches: fill-in-the-middle documents packed into rows, and the canvases that are denoised beside them.

A document is `<|suffix|> S <|prefix|> C P <|middle|> M <|eom|>`, or plain text. C is empty, or code of other files in
the form of `canvas.fim`. The lengths of prefix and suffix are
drawn without looking at the middle, and a long document is neither cut nor drawn again: the length of a prompt must not
predict the length of its middle (tests/training/test_rows.py).

A canvas sees the tokens of its document before it, which are encoded causally, and its own positions in both
directions. Inference with a cached prompt does the same. All canvases of a batch have the same length, so that a CPU
can compute their attention as dense products; a canvas may use fewer positions. Masks are drawn later, on the device.
"""

import os
import re
from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from dg_lsp.canvas.fim import MIN_ROOM
from dg_lsp.context.snippets import NO_SNIPPETS
from dg_lsp.training.store import TokenStore, load_store
from dg_lsp.training.tokenizer import (
    END_OF_MIDDLE,
    END_OF_TEXT,
    MIDDLE,
    PREFIX,
    SUFFIX,
    load_tokenizer,
)

Ids = npt.NDArray[np.uint16]
Int = npt.NDArray[np.int32]
Bool = npt.NDArray[np.bool_]
StreamState: TypeAlias = dict[str, Any]

SPAN_KINDS = ("line_rest", "lines", "span", "body")
SPAN_SHARES = (0.45, 0.30, 0.15, 0.10)
BODY = re.compile(r"^([ ]*)(?:async )?(?:def|class|if|elif|else|for|while|with|try|except|finally|match|case)\b.*:$")
WORD_START = re.compile(r"(?<=[^\w])(?=\w)|(?<=[.(\[{,=:])")
MAX_LINES, MAX_BODY_LINES = 4, 12
MEAN_SPAN = 40  # characters
MAX_FOLLOWING = 24  # lines after the first one of a span that are looked at
MAX_LOOKAHEAD = 2048  # characters; longer than any middle that fits

NUM_SENTINELS = 3  # special tokens of a prompt
NO_SUFFIX = 0.10  # share of documents without a suffix
MIN_SUFFIX, MAX_SUFFIX = 0.05, 1 / 3  # shares of a prompt
SHORT_PROMPT = 0.25  # share of documents with a prompt of at most SHORT_LENGTH tokens
SHORT_LENGTH = 64
MIN_PLAIN = 24  # tokens; less free space of a row stays empty
DOCUMENTS_AHEAD = 64  # documents made at once
SHORT_CANVAS = 0.25  # share of canvases that do not use all positions
CANVAS_FIELDS = ("start", "context_start", "length", "num_content", "is_middle", "target")
BATCHES_AHEAD = 4  # batches that a loader process prepares


def pick_span(lines: list[str], rng: np.random.Generator) -> tuple[int, int]:
    """The characters [start, end) of `lines` that become a middle, as in a completion request.

    The span starts in `lines[0]`, which is not blank.
    """
    picked = int(np.searchsorted(np.cumsum(SPAN_SHARES), rng.random(), side="right"))
    kind, line = SPAN_KINDS[min(picked, len(SPAN_KINDS) - 1)], lines[0]
    indent = _indent(line)
    if kind == "line_rest":
        return indent + _cut_in_line(line[indent:], rng), len(line)
    if kind == "lines":
        start = indent if rng.random() < 0.5 else 0
        return start, _end_of_line(lines, int(rng.integers(min(MAX_LINES, len(lines)))))
    if kind == "body" and (last := _last_line_of_body(lines)):
        # half of the editors have indented the line of the cursor
        indented = _indent(lines[1]) if rng.random() < 0.5 else 0
        return len(line) + 1 + indented, _end_of_line(lines, last)
    start = int(rng.integers(len(line)))
    end = start + 1 + int(rng.exponential(MEAN_SPAN))
    return start, min(end, _end_of_line(lines, len(lines) - 1))


def _cut_in_line(body: str, rng: np.random.Generator) -> int:
    """Offset where the rest of a line begins: half of them at the start of a word, half anywhere."""
    if rng.random() < 0.5:
        cuts = [match.start() for match in WORD_START.finditer(body) if match.start() < len(body)]
        return cuts[int(rng.integers(len(cuts)))] if cuts else 0
    return int(rng.integers(len(body)))


def _end_of_line(lines: list[str], last: int) -> int:
    """Offset of the end of line `last`, or of the last line before it that is not blank."""
    while last and not lines[last]:
        last -= 1
    return sum(map(len, lines[: last + 1])) + last


def _last_line_of_body(lines: list[str]) -> int:
    """The last line of the block that `lines[0]` opens; 0 if it opens none, or one that is too long."""
    opening = BODY.match(lines[0])
    if not opening:
        return 0
    outer, last = len(opening[1]), 0
    for i, line in enumerate(lines[1:], 1):
        if line and _indent(line) <= outer:
            return last
        if line:
            last = i
        if last > MAX_BODY_LINES:
            return 0
    return 0


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


@dataclass(frozen=True, slots=True)
class TrainingDocument:
    """`ids` (n,) uint16; `middle` is the index of the first token of M, or -1 for plain text."""

    ids: Ids
    middle: int


@dataclass(frozen=True, slots=True)
class _Cut:
    """A file cut around a middle."""

    texts: tuple[str, str, str]
    """From the start of the line to the middle, the middle, and from it to the next line that is not blank."""
    tokens: Ids  # of the file
    lines: npt.NDArray[np.int64]  # where lines start in `tokens`, and the number of tokens
    file: int
    first: int  # the line that starts at or before the middle
    last: int  # the line that starts at or after its end

    def head(self, num_tokens: int) -> Ids:
        """The whole lines before the texts that fit."""
        end = self.lines[self.first]
        return self.tokens[self.lines[np.searchsorted(self.lines, end - num_tokens)] : end]

    def tail(self, num_tokens: int) -> Ids:
        """The whole lines after the texts that fit."""
        start = self.lines[self.last]
        return self.tokens[start : self.lines[np.searchsorted(self.lines, start + num_tokens, side="right") - 1]]


class DocumentStream:
    """An endless, seeded stream of documents.

    Context, prefix and suffix have at most `max_prompt` tokens together, a middle has at most `max_middle`.
    `context_share` of the documents show code of other files, where their file imports any. All begin with `start_ids`.
    """

    def __init__(
        self,
        store: TokenStore,
        tokenizer: Tokenizer,
        max_prompt: int,
        max_middle: int,
        seed: int,
        context_share: float = 0.0,
        start_ids: tuple[int, ...] = (),
    ) -> None:
        self.store, self.tokenizer, self.start_ids = store, tokenizer, start_ids
        self.max_prompt, self.max_middle, self.context_share = max_prompt, max_middle, context_share
        self.rng = np.random.default_rng(seed)
        pieces = (tokenizer.decode([i], skip_special_tokens=False) for i in range(tokenizer.get_vocab_size()))
        self.ends_line = np.array([piece.endswith("\n") for piece in pieces])

    def infill_documents(self, num: int) -> list[TrainingDocument]:
        """`num` documents with a middle."""
        found: list[TrainingDocument] = []
        while len(found) < num:
            cuts = [self._cut() for _ in range(num - len(found))]
            encodings = self.tokenizer.encode_batch_fast(
                [t for cut in cuts for t in cut.texts], add_special_tokens=False
            )
            ids = [np.array(e.ids, np.uint16) for e in encodings]
            for i, cut in enumerate(cuts):
                # a middle is rejected for its own length only, before the length of its prompt is drawn
                if 0 < len(ids[3 * i + 1]) <= self.max_middle:
                    found.append(self._document(cut, *ids[3 * i : 3 * i + 3]))
        return found

    def plain_document(self, max_tokens: int) -> TrainingDocument:
        """Text from the start of a line, at most `max_tokens` long. Without a middle, any length is safe."""
        store, line = self.store, int(self.rng.integers(self.store.num_lines))
        file = store.file_of_line(line)
        first, end = int(store.token_starts[file]) + int(store.line_tokens[line]), int(store.token_starts[file + 1])
        start = list(self.start_ids) or ([END_OF_TEXT] if line == store.line_starts[file] else [])
        ids = store.tokens[first : min(end, first + max_tokens - len(start))]
        return TrainingDocument(np.concatenate([start, ids]).astype(np.uint16), -1)

    def _cut(self) -> _Cut:
        store = self.store
        line = int(self.rng.integers(store.num_lines))
        file = store.file_of_line(line)
        chars = store.chars[store.char_starts[file] : store.char_starts[file + 1]]
        tokens = store.tokens[store.token_starts[file] : store.token_starts[file + 1]]
        of_file = slice(int(store.line_starts[file]), int(store.line_starts[file + 1]))
        # the end of the file counts as the start of one more line
        line_chars = np.append(store.line_chars[of_file], len(chars)).astype(np.int64)
        line_tokens = np.append(store.line_tokens[of_file], len(tokens)).astype(np.int64)
        at = int(store.line_chars[line])
        lines = _text(chars[at : at + MAX_LOOKAHEAD]).split("\n")[: MAX_FOLLOWING + 1]
        start, end = (at + offset for offset in pick_span(lines if len(lines) == 1 else lines[:-1], self.rng))
        first = int(np.searchsorted(line_chars[:-1], start, side="right")) - 1
        last = int(np.searchsorted(line_chars[:-1], end))
        parts = (chars[line_chars[first] : start], chars[start:end], chars[end : line_chars[last]])
        before, middle, after = map(_text, parts)
        return _Cut((before, middle, after), tokens, line_tokens, file, first, last)

    def _document(self, cut: _Cut, before: Ids, middle: Ids, after: Ids) -> TrainingDocument:
        """Whole lines around the middle's own, which are cut at their outer ends if they are too long."""
        is_short = self.rng.random() < SHORT_PROMPT
        length = int(self.rng.integers(*((4, SHORT_LENGTH) if is_short else (SHORT_LENGTH, self.max_prompt + 1))))
        context = np.empty(0, np.uint16)
        if self.context_share and self.rng.random() < self.context_share:
            context = self._context(cut.file)
            length = min(length, self.max_prompt - len(context))
        num_after = 0 if self.rng.random() < NO_SUFFIX else int(length * self.rng.uniform(MIN_SUFFIX, MAX_SUFFIX))
        num_before = length - num_after
        prefix = [cut.head(max(0, num_before - len(before))), before[-num_before:]]
        suffix = [after[:num_after], cut.tail(max(0, num_after - len(after)))]
        prompt = np.concatenate([self.start_ids, [SUFFIX], *suffix, [PREFIX], context, *prefix, [MIDDLE]])
        return TrainingDocument(np.concatenate([prompt, middle, [END_OF_MIDDLE]]).astype(np.uint16), len(prompt))

    def _context(self, file: int) -> Ids:
        """Chunks of other files, the most important one last, then the file's own path; empty if no chunk fits."""
        store = self.store
        chunks = range(int(store.file_chunks[file]), int(store.file_chunks[file + 1]))
        own, *others = (store.chunk_tokens[store.chunk_starts[i] : store.chunk_starts[i + 1]] for i in chunks)
        taken: list[Ids] = []
        room = int(NO_SNIPPETS.share * self.max_prompt) - len(own)
        for ids in others:
            kept = self._whole_lines(ids, room)
            if len(kept):
                taken.insert(0, kept)
                room -= len(kept)
        return np.concatenate([*taken, own]) if taken else np.empty(0, np.uint16)

    def _whole_lines(self, ids: Ids, room: int) -> Ids:
        """The path of a chunk and the first lines that fit, at least one, or no tokens."""
        if room < MIN_ROOM:
            return ids[:0]
        if len(ids) <= room:
            return ids
        ends = np.flatnonzero(self.ends_line[ids[:room]])
        return ids[: ends[-1] + 1] if len(ends) > 1 else ids[:0]


def _text(chars: npt.NDArray[np.uint32]) -> str:
    return chars.tobytes().decode("utf-32-le")


@dataclass(frozen=True, slots=True)
class RowConfig:
    """Shape of a batch: rows of `num_clean` packed tokens, each with `num_noisy` canvas positions."""

    num_rows: int
    num_clean: int
    num_noisy: int
    max_middle: int  # tokens
    canvas_lengths: tuple[int, ...] = (8, 16, 32, 64)
    canvas_shares: tuple[float, ...] = (0.15, 0.40, 0.30, 0.15)
    context_share: float = 0.0  # of the documents, with code of other files before the prefix
    max_copies: int = 4  # how often a middle is denoised in one row, with other canvases and masks
    start_ids: tuple[int, ...] = ()  # first tokens of every document

    @property
    def max_prompt(self) -> int:
        """Longest context, prefix and suffix together, in tokens, so that every document fits a row."""
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
    """A document in a row: clean tokens [start, end); its middle starts at `middle`, or -1."""

    start: int
    end: int
    middle: int


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
        canvas_length = int(self.rng.choice(self.config.canvas_lengths, p=self.config.canvas_shares))
        rows = [self._row(canvas_length) for _ in range(self.config.num_rows)]
        return TrainingBatch(*(np.stack([getattr(r, name) for r in rows]) for name in TrainingBatch.__slots__))

    def _row(self, canvas_length: int) -> TrainingBatch:
        """One row without the batch axis. Canvases that are not needed have the length 0."""
        num_clean, num = self.config.num_clean, self.config.num_noisy // canvas_length
        tokens, document = np.full(num_clean, END_OF_TEXT, np.int32), np.full(num_clean, -1, np.int32)
        position, in_middle = np.zeros(num_clean, np.int32), np.zeros(num_clean, bool)
        start, context_start, length, num_content = np.zeros((4, num), np.int32)
        is_middle, target = np.zeros(num, bool), np.zeros((num, canvas_length), np.int32)
        placed, at = [], 0
        for i, doc in enumerate(self._documents_of_row()):
            end = at + len(doc.ids)
            tokens[at:end], document[at:end], position[at:end] = doc.ids, i, np.arange(len(doc.ids))
            middle = at + doc.middle if doc.middle >= 0 else -1
            in_middle[middle if middle >= 0 else end : end] = True
            placed.append(_Placed(at, end, middle))
            at = end
        for i, (doc_placed, first, size) in enumerate(self._canvases(placed, canvas_length)):
            content = tokens[first : min(doc_placed.end, first + size)]
            start[i], context_start[i], length[i], num_content[i] = first, doc_placed.start, size, len(content)
            is_middle[i] = 0 <= doc_placed.middle <= first
            target[i] = END_OF_MIDDLE
            target[i, : len(content)] = content
        return TrainingBatch(
            tokens, document, position, in_middle, start, context_start, length, num_content, is_middle, target
        )

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

    def _canvases(self, documents: list[_Placed], canvas_length: int) -> list[tuple[_Placed, int, int]]:
        """Document, start and length of canvases that cover every middle up to `max_copies` times, then any text."""
        num, rng = self.config.num_noisy // canvas_length, self.rng
        found: list[tuple[_Placed, int, int]] = []
        for document in [document for document in documents if document.middle >= 0] * self.config.max_copies:
            at = document.middle
            while at < document.end and len(found) < num:
                found.append((document, at, self._length(canvas_length)))
                at += found[-1][2]
        text_ends = [(d, d.middle if d.middle >= 0 else d.end) for d in documents]
        texts = [(document, end) for document, end in text_ends if end - document.start > 8]
        while len(found) < num and texts:
            document, end = texts[int(rng.integers(len(texts)))]
            at = int(rng.integers(document.start + 1, end - 4))
            found.append((document, at, min(self._length(canvas_length), end - at)))
        return found

    def _length(self, canvas_length: int) -> int:
        is_short = self.rng.random() < SHORT_CANVAS
        return int(self.rng.integers(canvas_length // 2, canvas_length)) if is_short else canvas_length


def open_stream(root: Path, split: str, config: RowConfig, seed: int) -> BatchStream:
    """A stream over a split that `data` prepared."""
    store, tokenizer = load_store(root / split), load_tokenizer(root / "tokenizer.json")
    shape = (config.max_prompt, config.max_middle, seed, config.context_share, config.start_ids)
    return BatchStream(DocumentStream(store, tokenizer, *shape), config)


@dataclass(frozen=True, slots=True)
class LoaderState:
    """The state of each loader process after its last consumed batch, and which one comes next."""

    streams: tuple[StreamState | None, ...]
    turn: int = 0


class _LoaderStreams(IterableDataset[tuple[int, TrainingBatch, StreamState]]):
    """The endless training batches of one loader process, each with its stream's number and later state."""

    def __init__(self, root: Path, config: RowConfig, seed: int, state: LoaderState) -> None:
        super().__init__()
        self.arguments, self.seed, self.state = (root, "train", config), seed, state

    def __iter__(self) -> Iterator[tuple[int, TrainingBatch, StreamState]]:
        worker = get_worker_info()
        if worker:
            os.environ["TOKENIZERS_PARALLELISM"] = "false"
        number = (self.state.turn + (worker.id if worker else 0)) % len(self.state.streams)
        stream = open_stream(*self.arguments, self.seed + number)
        if stream_state := self.state.streams[number]:
            stream.restore(stream_state)
        while True:
            yield number, stream.batch(), stream.state()


class BatchLoader:
    """Training batches from loader processes in a fixed order. Without processes they are made in this one."""

    def __init__(
        self, root: Path, config: RowConfig, seed: int, num_processes: int, state: LoaderState | None = None
    ) -> None:
        self.state = state or LoaderState((None,) * max(1, num_processes))
        """What a new loader needs to continue after the last batch of this one."""
        options = {"prefetch_factor": BATCHES_AHEAD, "multiprocessing_context": "spawn"} if num_processes else {}
        streams = _LoaderStreams(root, config, seed, self.state)
        self._batches = DataLoader(
            streams, batch_size=None, num_workers=num_processes, collate_fn=_unchanged, **options
        )

    def __iter__(self) -> Generator[TrainingBatch]:
        for number, batch, stream_state in self._batches:
            streams = self.state.streams
            streams = (*streams[:number], stream_state, *streams[number + 1 :])
            self.state = LoaderState(streams, (number + 1) % len(streams))
            yield batch


def _unchanged(item: Any) -> Any:
    """Keeps numpy arrays, which a DataLoader would convert."""
    return item
