"""Fill-in-the-middle examples: `<|suffix|> S <|prefix|> P <|middle|> M <|eom|>`, or plain text.

Files are tokenized once, into a TokenStore. The pre-tokenizer ends a token at every run of newlines, so text cut at the
start of a non-blank line tokenizes to a slice of the file's tokens. Only the lines around the middle are encoded again.

The lengths of prefix and suffix are drawn without looking at the middle, and a long document is neither cut nor drawn
again: the length of a prompt must not predict the length of its middle (tests/training/test_documents.py).
"""

import re
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from dg_lsp.training.tokenizer import END_OF_MIDDLE, END_OF_TEXT, MIDDLE, PREFIX, SUFFIX

Ids = npt.NDArray[np.uint16]

NEWLINE = 10
FILES_PER_BATCH = 512  # files tokenized at once; an Encoding takes much more memory than its ids

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
SHORT_PROMPT = 0.25  # share of documents with a prompt of at most SHORT_LENGTH tokens
SHORT_LENGTH = 64


@dataclass(frozen=True, slots=True)
class TokenStore:
    """Flat arrays over all files of a split.

    tokens (num_tokens,) uint16; chars (num_chars,) uint32 code points; line_chars, line_tokens (num_lines,) uint32:
    where each non-blank line starts in its file; token_starts, char_starts, line_starts (num_files + 1,) int64.
    """

    tokens: npt.NDArray[np.uint16]
    chars: npt.NDArray[np.uint32]
    line_chars: npt.NDArray[np.uint32]
    line_tokens: npt.NDArray[np.uint32]
    token_starts: npt.NDArray[np.int64]
    char_starts: npt.NDArray[np.int64]
    line_starts: npt.NDArray[np.int64]

    @property
    def num_lines(self) -> int:
        """Number of non-blank lines."""
        return len(self.line_chars)

    def file_of_line(self, line: int) -> int:
        """Index of the file that contains a line."""
        return int(np.searchsorted(self.line_starts, line, side="right")) - 1


def build_store(texts: list[str], tokenizer: Tokenizer) -> TokenStore:
    """Tokenize every file."""
    tokens, chars, line_chars, line_tokens = [], [], [], []
    batches = (texts[i : i + FILES_PER_BATCH] for i in range(0, len(texts), FILES_PER_BATCH))
    encodings = (e for batch in batches for e in tokenizer.encode_batch(batch, add_special_tokens=False))
    for text, encoding in zip(texts, encodings, strict=True):
        points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
        token_offsets = np.array([offset[0] for offset in encoding.offsets], np.uint32)
        is_line_start = np.concatenate([[True], points[:-1] == NEWLINE])[: len(points)]
        starts = np.flatnonzero(is_line_start & (points != NEWLINE))
        token = np.searchsorted(token_offsets, starts)
        is_boundary = token_offsets[np.minimum(token, len(token_offsets) - 1)] == starts
        tokens.append(np.array(encoding.ids, np.uint16))
        chars.append(points)
        line_chars.append(starts[is_boundary].astype(np.uint32))
        line_tokens.append(token[is_boundary].astype(np.uint32))
    parts = (tokens, chars, line_chars, line_tokens)
    starts_of = [np.cumsum([0, *(len(array) for array in part)], dtype=np.int64) for part in parts[:3]]
    return TokenStore(*(np.concatenate(part) for part in parts), *starts_of)


def write_store(folder: Path, store: TokenStore) -> None:
    """Write one .npy file per array, so that several processes can map them."""
    folder.mkdir(parents=True, exist_ok=True)
    for field in fields(store):
        np.save(folder / f"{field.name}.npy", getattr(store, field.name))


def load_store(folder: Path) -> TokenStore:
    """Memory-map the arrays in `folder`."""
    return TokenStore(**{f.name: np.load(folder / f"{f.name}.npy", mmap_mode="r") for f in fields(TokenStore)})


@dataclass(frozen=True, slots=True)
class Span:
    """The characters [start, end) that become the middle, relative to the start of the line they were chosen from."""

    start: int
    end: int


def pick_span(lines: list[str], rng: np.random.Generator) -> Span:
    """A span as in a completion request. It starts in `lines[0]`, which is not blank."""
    picked = int(np.searchsorted(np.cumsum(SPAN_SHARES), rng.random(), side="right"))
    kind, line = SPAN_KINDS[min(picked, len(SPAN_KINDS) - 1)], lines[0]
    indent = _indent(line)
    if kind == "line_rest":
        return Span(indent + _cut_in_line(line[indent:], rng), len(line))
    if kind == "lines":
        start = indent if rng.random() < 0.5 else 0
        return Span(start, _end_of_line(lines, int(rng.integers(min(MAX_LINES, len(lines))))))
    if kind == "body" and (last := _last_line_of_body(lines)):
        # half of the editors have indented the line of the cursor
        indented = _indent(lines[1]) if rng.random() < 0.5 else 0
        return Span(len(line) + 1 + indented, _end_of_line(lines, last))
    start = int(rng.integers(len(line)))
    end = start + 1 + int(rng.exponential(MEAN_SPAN))
    return Span(start, min(end, _end_of_line(lines, len(lines) - 1)))


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
    """A file cut around a middle: the three texts to encode, and the tokens of the whole lines around them."""

    before: str  # from the start of the line (or of the blank lines before it) to the middle
    middle: str
    after: str  # from the middle to the next non-blank line
    head: Ids  # tokens before `before`
    tail: Ids  # tokens after `after`
    is_from_start: bool  # whether `head` begins at the start of the file
    head_lines: npt.NDArray[np.int64]  # indices in `head` where lines start
    tail_lines: npt.NDArray[np.int64]


class DocumentStream:
    """An endless, seeded stream of documents.

    Prefix and suffix have at most `max_prompt` tokens together, a middle has at most `max_middle`.
    """

    def __init__(self, store: TokenStore, tokenizer: Tokenizer, max_prompt: int, max_middle: int, seed: int) -> None:
        self.store, self.tokenizer = store, tokenizer
        self.max_prompt, self.max_middle = max_prompt, max_middle
        self.rng = np.random.default_rng(seed)

    def infill_documents(self, num: int) -> list[TrainingDocument]:
        """`num` documents with a middle."""
        found: list[TrainingDocument] = []
        while len(found) < num:
            cuts = [self._cut() for _ in range(num - len(found))]
            texts = [text for cut in cuts for text in (cut.before, cut.middle, cut.after)]
            encodings = self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)
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
        start = [END_OF_TEXT] if line == store.line_starts[file] else []
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
        span = pick_span(lines if len(lines) == 1 else lines[:-1], self.rng)
        start, end = at + span.start, at + span.end
        first = int(np.searchsorted(line_chars[:-1], start, side="right")) - 1  # the line start at or before the middle
        last = int(np.searchsorted(line_chars[:-1], end))  # the line start at or after it
        low = max(0, int(line_tokens[first]) - self.max_prompt)
        high = min(len(tokens), int(line_tokens[last]) + self.max_prompt)
        low_line, high_line = np.searchsorted(line_tokens[:-1], [low, high])
        return _Cut(
            _text(chars[line_chars[first] : start]),
            _text(chars[start:end]),
            _text(chars[end : line_chars[last]]),
            tokens[low : line_tokens[first]],
            tokens[line_tokens[last] : high],
            low == 0,
            line_tokens[low_line:first] - low,
            line_tokens[last:high_line] - line_tokens[last],
        )

    def _document(self, cut: _Cut, before: Ids, middle: Ids, after: Ids) -> TrainingDocument:
        is_short = self.rng.random() < SHORT_PROMPT
        length = int(self.rng.integers(*((4, SHORT_LENGTH) if is_short else (SHORT_LENGTH, self.max_prompt + 1))))
        suffix_length = 0 if self.rng.random() < NO_SUFFIX else int(length * self.rng.uniform(0.05, 0.45))
        suffix = _suffix(cut, after, suffix_length)
        prefix = _prefix(cut, before, length - suffix_length)
        prompt = np.concatenate([[SUFFIX], suffix, [PREFIX], prefix, [MIDDLE]])
        return TrainingDocument(np.concatenate([prompt, middle, [END_OF_MIDDLE]]).astype(np.uint16), len(prompt))


def _prefix(cut: _Cut, before: Ids, length: int) -> Ids:
    """The last tokens before the middle: whole lines that fit, and the start of its line or the end of that start."""
    if len(before) >= length:
        return before[len(before) - length :]
    free = length - len(before)
    if cut.is_from_start and len(cut.head) <= free:
        return np.concatenate([cut.head, before])
    fits = cut.head_lines[cut.head_lines >= len(cut.head) - free]
    return np.concatenate([cut.head[fits[0] :], before]) if len(fits) else before


def _suffix(cut: _Cut, after: Ids, length: int) -> Ids:
    """The first tokens after the middle: the rest of its line, then whole lines that fit."""
    if len(after) >= length:
        return after[:length]
    free = length - len(after)
    if len(cut.tail) <= free:
        return np.concatenate([after, cut.tail])
    fits = cut.tail_lines[cut.tail_lines <= free]
    return np.concatenate([after, cut.tail[: fits[-1]]]) if len(fits) else after


def _text(chars: npt.NDArray[np.uint32]) -> str:
    return chars.tobytes().decode("utf-32-le")
