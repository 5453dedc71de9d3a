"""Files as token arrays: tokenized once, with the offset of every line start in characters and in tokens.

A token boundary always follows a newline run in our pre-tokenizer, so a file cut at a line start that is not inside
a run of blank lines tokenizes to the slice of the whole. Everything is flat so that it can be memory-mapped.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TokenStore:
    """Flat arrays over all files of a split.

    tokens (num_tokens,) uint16; chars (num_chars,) uint32 code points; offsets (num_tokens,) uint32: first character
    of each token inside its file; token_starts and char_starts (num_files + 1,) int64.
    """

    tokens: npt.NDArray[np.uint16]
    offsets: npt.NDArray[np.uint32]
    chars: npt.NDArray[np.uint32]
    token_starts: Array
    char_starts: Array

    @property
    def num_files(self) -> int:
        return len(self.token_starts) - 1


def write_store(path: Path, texts: list[str], tokenizer: Tokenizer) -> int:
    """Tokenizes `texts` and writes their arrays to `path` (npz, uncompressed); returns the number of tokens."""
    encodings = []
    for at in range(0, len(texts), 512):
        batch = tokenizer.encode_batch(texts[at : at + 512], add_special_tokens=False)
        # one array per file: an Encoding keeps far more than we need
        encodings += [(np.array(e.ids, np.uint16), np.array([o[0] for o in e.offsets], np.uint32)) for e in batch]
    np.savez(
        path,
        tokens=np.concatenate([ids for ids, _ in encodings]),
        offsets=np.concatenate([offsets for _, offsets in encodings]),
        chars=np.frombuffer("".join(texts).encode("utf-32-le"), np.uint32),
        token_starts=np.cumsum([0] + [len(ids) for ids, _ in encodings]),
        char_starts=np.cumsum([0] + [len(text) for text in texts]),
    )
    return sum(len(ids) for ids, _ in encodings)


def load_store(path: Path) -> TokenStore:
    """The arrays written by `write_store`."""
    with np.load(path) as arrays:
        return TokenStore(**{name: arrays[name] for name in TokenStore.__slots__})
