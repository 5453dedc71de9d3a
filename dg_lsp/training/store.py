"""Files as token arrays: tokenized once, with every non-blank line's start in characters and in tokens.

A token boundary always follows a newline run in our pre-tokenizer, so text cut at the start of a non-blank line
tokenizes to a slice of the whole file's tokens. Only the lines that a fill cuts are ever encoded again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Encoding, Tokenizer

NEWLINE = 10
BATCH = 512  # files tokenized at once: an Encoding keeps far more than its ids


@dataclass(frozen=True, slots=True)
class TokenStore:
    """Flat arrays over all files of a split; line starts are relative to their file, and ascend.

    tokens (num_tokens,) uint16; chars (num_chars,) uint32 code points; line_chars, line_tokens (num_lines,) uint32;
    token_starts, char_starts, line_starts (num_files + 1,) int64; names (num_files,) paths, or empty strings.
    """

    tokens: npt.NDArray[np.uint16]
    chars: npt.NDArray[np.uint32]
    line_chars: npt.NDArray[np.uint32]
    line_tokens: npt.NDArray[np.uint32]
    token_starts: npt.NDArray[np.int64]
    char_starts: npt.NDArray[np.int64]
    line_starts: npt.NDArray[np.int64]
    names: npt.NDArray[np.str_]

    @property
    def num_lines(self) -> int:
        """Non-blank lines of all files together."""
        return len(self.line_chars)

    def file_of_line(self, line: int) -> int:
        """The file that holds the `line`-th line of the store."""
        return int(np.searchsorted(self.line_starts, line, side="right")) - 1


def non_blank_starts(chars: npt.NDArray[np.uint32]) -> npt.NDArray[np.intp]:
    """Offsets of the first character of every line that is not empty."""
    after_newline = np.concatenate([[True], chars[:-1] == NEWLINE]) if len(chars) else np.zeros(0, bool)
    return np.flatnonzero(after_newline & (chars != NEWLINE))


def _encode(texts: list[str], tokenizer: Tokenizer) -> Iterator[Encoding]:
    for at in range(0, len(texts), BATCH):
        yield from tokenizer.encode_batch(texts[at : at + BATCH], add_special_tokens=False)


def build_store(texts: list[str], tokenizer: Tokenizer, names: Sequence[str] = ()) -> TokenStore:
    """Tokenizes every file once; `names` are the files' paths, where they matter."""
    tokens, chars, line_chars, line_tokens = [], [], [], []
    for text, encoding in zip(texts, _encode(texts, tokenizer), strict=True):
        points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
        offsets = np.array([offset[0] for offset in encoding.offsets], np.uint32)
        starts = non_blank_starts(points)
        at = np.searchsorted(offsets, starts)
        is_boundary = offsets[np.minimum(at, len(offsets) - 1)] == starts
        tokens.append(np.array(encoding.ids, np.uint16))
        chars.append(points)
        line_chars.append(starts[is_boundary].astype(np.uint32))
        line_tokens.append(at[is_boundary].astype(np.uint32))

    def starts_of(parts: list[npt.NDArray[np.uint32]] | list[npt.NDArray[np.uint16]]) -> npt.NDArray[np.int64]:
        return np.cumsum([0] + [len(part) for part in parts], dtype=np.int64)

    return TokenStore(
        np.concatenate(tokens),
        np.concatenate(chars),
        np.concatenate(line_chars),
        np.concatenate(line_tokens),
        starts_of(tokens),
        starts_of(chars),
        starts_of(line_chars),
        np.array(names or [""] * len(texts)),
    )


def write_store(folder: Path, store: TokenStore) -> None:
    """One .npy file per array, so that several processes can map them."""
    folder.mkdir(parents=True, exist_ok=True)
    for field in fields(store):
        np.save(folder / f"{field.name}.npy", getattr(store, field.name))


def load_store(folder: Path) -> TokenStore:
    """The arrays of `folder`, memory-mapped."""
    return TokenStore(**{f.name: np.load(folder / f"{f.name}.npy", mmap_mode="r") for f in fields(TokenStore)})
