"""Fill-in-the-middle documents, cut out of the files of a corpus.

A document is `<|suffix|> S <|prefix|> P <|middle|> M <|eom|>`, or plain text. P ends where the product's prompt ends:
it is backed up from the cursor to a safe token boundary (`canvas.layout`), and M begins with the text between
the boundary and the cursor. The lengths of prefix and suffix are drawn without looking at the middle, and a long
document is neither cut nor drawn again: the length of a prompt must not predict the length of its middle
(tests/test_rows.py).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tokenizers import Encoding, Tokenizer

from dg_lsp.bench.metrics import grouped
from dg_lsp.canvas.layout import unit_start
from dg_lsp.context.languages import language_id_of
from dg_training.store import CorpusFile
from dg_training.tokenizer import END_OF_MIDDLE, END_OF_TEXT, MIDDLE, PREFIX, SUFFIX

Ids = npt.NDArray[np.uint16]

LANGUAGE_SHARES = {"python": 0.5, "typescript": 0.11, "javascript": 0.1, "typescriptreact": 0.02}
OTHER_SHARE = 0.03
OTHER_CHARS = 1_000_000
"""Shares of the documents by language, and of each other language with so many characters; one with less has less. They
are scaled to the languages of a corpus."""
SPAN_KINDS = ("line_rest", "lines", "span", "body")
SPAN_SHARES = (0.45, 0.30, 0.15, 0.10)
OPENING = re.compile(r"[:{(\[>]\s*$")  # a line that may open a block
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
CHARS_PER_TOKEN = 10  # more than code has on average, so that a text of so many characters fills a prompt


def pick_span(lines: list[str], rng: np.random.Generator) -> tuple[int, int]:
    """The characters [start, end) of `lines` that become a middle, as in a completion request.

    The span starts in `lines[0]`, which is not blank.
    """
    kind = rng.choice(SPAN_KINDS, p=SPAN_SHARES)
    line = lines[0]
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
    if not OPENING.search(lines[0]):
        return 0
    outer = _indent(lines[0])
    last = 0
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
    """`ids` (n,) uint16; `middle` is the index of the first token of M, in plain text the number of tokens."""

    ids: Ids
    middle: int


def by_language(files: Sequence[CorpusFile]) -> dict[str, list[CorpusFile]]:
    """The files of each language, by LSP language id."""
    return grouped(files, lambda file: language_id_of(file.path, file.text[:100]))


def language_shares(groups: Mapping[str, Sequence[CorpusFile]]) -> dict[str, float]:
    """The share of the documents in each language; they add up to 1."""
    shares = {}
    for language, files in groups.items():
        default_share = OTHER_SHARE * min(1.0, sum(len(file.text) for file in files) / OTHER_CHARS)
        shares[language] = LANGUAGE_SHARES.get(language, default_share)
    return {language: share / sum(shares.values()) for language, share in shares.items()}


def sample_texts(files: Sequence[CorpusFile], num_chars: int) -> Iterator[str]:
    """About so many characters in the languages' shares: every n-th file of each."""
    groups = by_language(files)
    for language, share in language_shares(groups).items():
        group = groups[language]
        stride = max(1, int(sum(len(file.text) for file in group) / (share * num_chars)))
        yield from (file.text for file in group[::stride])


class DocumentStream:
    """An endless, seeded stream of documents.

    Prefix and suffix have at most `max_prompt` tokens together, a middle has at most `max_middle`. All documents begin
    with `start_ids`.
    """

    def __init__(
        self,
        files: Sequence[CorpusFile],
        tokenizer: Tokenizer,
        max_prompt: int,
        max_middle: int,
        seed: int,
        start_ids: tuple[int, ...] = (),
    ) -> None:
        self.tokenizer = tokenizer
        self.start_ids = start_ids
        self.max_prompt = max_prompt
        self.max_middle = max_middle
        self.rng = np.random.default_rng(seed)
        groups = by_language(files)
        self._groups = list(groups.values())
        self._shares = list(language_shares(groups).values())
        self._ends = [np.cumsum([len(file.text) for file in group]) for group in self._groups]

    def infill_document(self) -> TrainingDocument:
        """A document with a middle. Only the middle's own length decides whether it is drawn again."""
        while True:
            file, at = self._draw_line()
            lines = file.text[at : at + MAX_LOOKAHEAD].split("\n")[: MAX_FOLLOWING + 1]
            start, end = (at + offset for offset in pick_span(lines if len(lines) == 1 else lines[:-1], self.rng))
            num_before, num_after = self._draw_lengths()
            text = self._text_before(file.text, start, num_before * CHARS_PER_TOKEN)
            prefix, removed = self._backed_up(text)
            middle = self._encode(removed + file.text[start:end])
            if len(middle) <= self.max_middle:
                break
        suffix = self._encode(file.text[end : end + num_after * CHARS_PER_TOKEN])[:num_after]
        prefix = prefix[max(0, len(prefix) - num_before) :]
        prompt = [*self.start_ids, SUFFIX, *suffix, PREFIX, *prefix, MIDDLE]
        return TrainingDocument(np.array([*prompt, *middle, END_OF_MIDDLE], np.uint16), len(prompt))

    def plain_document(self, max_tokens: int) -> TrainingDocument:
        """Text from the start of a line, at most `max_tokens` long. Without a middle, any length is safe."""
        file, at = self._draw_line()
        start = list(self.start_ids) or ([END_OF_TEXT] if at == 0 else [])
        ids = self._encode(file.text[at : at + max_tokens * CHARS_PER_TOKEN])
        text = np.array([*start, *ids][:max_tokens], np.uint16)
        return TrainingDocument(text, len(text))

    def _draw_line(self) -> tuple[CorpusFile, int]:
        """A file and the offset of a line in it that is not blank; a file is drawn as often as it is long."""
        language = int(self.rng.choice(len(self._groups), p=self._shares))
        ends = self._ends[language]
        while True:
            offset = int(self.rng.integers(ends[-1]))
            number = int(np.searchsorted(ends, offset, side="right"))
            file = self._groups[language][number]
            at = file.text.rfind("\n", 0, offset - int(ends[number]) + len(file.text)) + 1
            if file.text[at : at + MAX_LOOKAHEAD].partition("\n")[0].strip():
                return file, at

    def _draw_lengths(self) -> tuple[int, int]:
        """The largest numbers of tokens of prefix and suffix."""
        is_short = self.rng.random() < SHORT_PROMPT
        length = int(self.rng.integers(*((4, SHORT_LENGTH) if is_short else (SHORT_LENGTH, self.max_prompt + 1))))
        num_after = 0 if self.rng.random() < NO_SUFFIX else int(length * self.rng.uniform(MIN_SUFFIX, MAX_SUFFIX))
        return length - num_after, num_after

    def _backed_up(self, text: str) -> tuple[list[int], str]:
        """The tokens before a cursor up to a safe boundary, and the text from there to the cursor."""
        encoding: Encoding = self.tokenizer.encode(text, add_special_tokens=False)
        safe = unit_start(text)
        num = len(encoding.ids)
        while num and encoding.offsets[num - 1][1] > safe:
            num -= 1
        return encoding.ids[:num], text[encoding.offsets[num - 1][1] if num else 0 :]

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    @staticmethod
    def _text_before(text: str, end: int, num_chars: int) -> str:
        """At least so many characters before `end`, from the start of a line, so that no token is cut."""
        return text[text.rfind("\n", 0, max(0, end - num_chars)) + 1 : end]
