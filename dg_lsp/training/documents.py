"""Fill-in-the-middle documents, cut out of the files of a corpus.

A document is `<|suffix|> S <|prefix|> C P <|middle|> M <|eom|>`, or plain text. C is empty, or code of other files in
the form of `canvas.fim`. The lengths of prefix and suffix are drawn without looking at the middle, and a long document
is neither cut nor drawn again: the length of a prompt must not predict the length of its middle
(tests/training/test_rows.py).
"""

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from dg_lsp.canvas.fim import MIN_ROOM
from dg_lsp.context.snippets import NO_SNIPPETS
from dg_lsp.training.store import TokenStore
from dg_lsp.training.tokenizer import END_OF_MIDDLE, END_OF_TEXT, MIDDLE, PREFIX, SUFFIX

Ids = npt.NDArray[np.uint16]

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
