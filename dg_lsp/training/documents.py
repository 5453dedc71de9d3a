"""Training documents: `<|suffix|> S <|prefix|> P <|middle|> M <|eom|>`, or plain text. Knows no rows or canvases.

The room of prefix and suffix is drawn without looking at the middle, and nothing is cut or drawn again because a
document is long: a prompt's length must say nothing about the length of its middle (tests/training/test_length_leak).
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from dg_lsp.training.middles import MAX_ROWS, MiddleShares, pick_middle
from dg_lsp.training.store import TokenStore
from dg_lsp.training.vocabulary import END_OF_MIDDLE, END_OF_TEXT, FILE, MIDDLE, PREFIX, SUFFIX

Ids = npt.NDArray[np.uint16]
NUM_SENTINELS = 3  # of a prompt
NO_SUFFIX = 0.10  # share of documents whose suffix is empty
SHORT_PROMPT = 0.25  # share of documents with a short prompt
SHORT_ROOM = 64  # tokens
MAX_PIECE = 2048  # characters: more than any middle that fits
HEADER_SHARE = 0.25  # of a prompt's room that its header may take


class Header(StrEnum):
    """What a prompt says beside the file's text, between suffix and prefix: `<|file|> HEADER`."""

    NONE = "none"
    PATH = "path"
    """The file's path in its package."""
    NEIGHBOUR = "neighbour"
    """The path of the file before it in the same folder, and that file's beginning."""


@dataclass(frozen=True, slots=True)
class Document:
    """`ids` (n,) uint16; `middle` is the offset of M's first token, or -1 for plain text."""

    ids: Ids
    middle: int


@dataclass(frozen=True, slots=True)
class Cut:
    """A middle before it is tokenized: the pieces that must be encoded, and the token slices around them."""

    before: str  # from the start of the line (or of a blank run) to the middle
    middle: str
    after: str  # from the middle to the next non-blank line
    head: Ids  # tokens of the whole lines before `before`
    tail: Ids  # tokens of the whole lines after `after`
    at_start: bool  # whether `head` begins at the file's start
    head_lines: npt.NDArray[np.int64]  # token offsets of line starts in `head`
    tail_lines: npt.NDArray[np.int64]
    file: int  # its number in the store


class Documents:
    """An endless, seedable stream of documents over a store."""

    def __init__(
        self,
        store: TokenStore,
        tokenizer: Tokenizer,
        max_prompt: int,
        max_middle: int,
        seed: int,
        *,
        shares: MiddleShares | None = None,
        header: Header = Header.NONE,
    ) -> None:
        self.store, self.tokenizer = store, tokenizer
        self.shares, self.header = shares or MiddleShares(), header
        self.max_prompt, self.max_middle = max_prompt, max_middle
        self.rng = np.random.default_rng(seed)

    def fims(self, num: int) -> list[Document]:
        """`num` FIM documents, their cut pieces encoded in one batch."""
        found: list[Document] = []
        while len(found) < num:
            cuts = [self._cut() for _ in range(num - len(found))]
            pieces = [piece for cut in cuts for piece in (cut.before, cut.middle, cut.after)]
            ids = [
                np.array(e.ids, np.uint16) for e in self.tokenizer.encode_batch_fast(pieces, add_special_tokens=False)
            ]
            for i, cut in enumerate(cuts):
                # a middle is refused for its own length only, before any room is drawn
                if 0 < len(ids[3 * i + 1]) <= self.max_middle:
                    found.append(self._fim(cut, *ids[3 * i : 3 * i + 3]))
        return found

    def plain(self, room: int) -> Document:
        """At most `room` tokens of text from a line start; there is no middle, so its length may follow the room."""
        store, line = self.store, int(self.rng.integers(self.store.num_lines))
        file = store.file_of_line(line)
        first, end = int(store.token_starts[file]) + int(store.line_tokens[line]), int(store.token_starts[file + 1])
        if line == store.line_starts[file]:
            return Document(
                np.concatenate([[END_OF_TEXT], store.tokens[first : min(end, first + room - 1)]]).astype(np.uint16), -1
            )
        return Document(np.array(store.tokens[first : min(end, first + room)]), -1)

    def _cut(self) -> Cut:
        store = self.store
        line = int(self.rng.integers(store.num_lines))
        file = store.file_of_line(line)
        chars = store.chars[store.char_starts[file] : store.char_starts[file + 1]]
        at = int(store.line_chars[line])
        lines = _text(chars[at : at + MAX_PIECE]).split("\n")[: MAX_ROWS + 1]
        picked = pick_middle(lines if len(lines) == 1 else lines[:-1], self.rng, self.shares)
        a, b = at + picked.start, at + picked.end
        first, last = int(store.line_starts[file]), int(store.line_starts[file + 1])
        starts = store.line_chars[first:last]
        home = int(np.searchsorted(starts, a, side="right")) - 1  # the last non-blank line start at or before a
        after_line = int(np.searchsorted(starts, b, side="left"))
        after_end = int(starts[after_line]) if after_line < last - first else len(chars)
        tokens = store.tokens[store.token_starts[file] : store.token_starts[file + 1]]
        line_tokens = store.line_tokens[first:last].astype(np.int64)
        cut_at = int(line_tokens[home])
        tail_at = int(line_tokens[after_line]) if after_line < last - first else len(tokens)
        low, high = max(0, cut_at - self.max_prompt), min(len(tokens), tail_at + self.max_prompt)
        low_line, high_line = np.searchsorted(line_tokens, [low, high])
        return Cut(
            _text(chars[int(starts[home]) : a]),
            _text(chars[a:b]),
            _text(chars[b:after_end]),
            tokens[low:cut_at],
            tokens[tail_at:high],
            low == 0,
            line_tokens[low_line:home] - low,
            line_tokens[after_line:high_line] - tail_at,
            file,
        )

    def _fim(self, cut: Cut, before: Ids, middle: Ids, after: Ids) -> Document:
        rng = self.rng
        room = int(
            rng.integers(4, SHORT_ROOM)
            if rng.random() < SHORT_PROMPT
            else rng.integers(SHORT_ROOM, self.max_prompt + 1)
        )
        suffix_room = 0 if rng.random() < NO_SUFFIX else int(room * rng.uniform(0.05, 0.45))
        header = self._header(cut.file, int(room * HEADER_SHARE))
        suffix = _suffix(cut, after, suffix_room)
        prefix = _prefix(cut, before, room - suffix_room - len(header))
        prompt = np.concatenate([[SUFFIX], suffix, header, [PREFIX], prefix, [MIDDLE]])
        return Document(np.concatenate([prompt, middle, [END_OF_MIDDLE]]).astype(np.uint16), len(prompt))

    def _header(self, file: int, room: int) -> Ids:
        """At most `room` tokens; nothing where there is no neighbour."""
        none = np.zeros(0, np.uint16)
        if self.header is Header.NONE:
            return none
        store = self.store
        name = str(store.names[file])
        text: Ids = none
        if self.header is Header.NEIGHBOUR:
            neighbour = str(store.names[file - 1]) if file else ""
            if neighbour.rpartition("/")[0] != name.rpartition("/")[0]:
                return none
            name, text = neighbour, store.tokens[store.token_starts[file - 1] : store.token_starts[file]][:room]
        path = self.tokenizer.encode(f"{name}\n", add_special_tokens=False).ids
        return np.concatenate([[FILE], path, text]).astype(np.uint16)[:room]


def _prefix(cut: Cut, before: Ids, room: int) -> Ids:
    """The last tokens before the middle: whole lines where they fit, else the end of the cut line."""
    if len(before) >= room:
        return before[len(before) - room :]
    free = room - len(before)
    if cut.at_start and len(cut.head) <= free:
        return np.concatenate([cut.head, before])
    fits = cut.head_lines[cut.head_lines >= len(cut.head) - free]
    return np.concatenate([cut.head[fits[0] :], before]) if len(fits) else before


def _suffix(cut: Cut, after: Ids, room: int) -> Ids:
    """The first tokens after the middle: the rest of the cut line, then whole lines where they fit."""
    if len(after) >= room:
        return after[:room]
    free = room - len(after)
    if len(cut.tail) <= free:
        return np.concatenate([after, cut.tail])
    fits = cut.tail_lines[cut.tail_lines <= free]
    return np.concatenate([after, cut.tail[: fits[-1]]]) if len(fits) else after


def _text(chars: npt.NDArray[np.uint32]) -> str:
    return chars.tobytes().decode("utf-32-le")
