"""The vocabulary, 8,192 byte-level BPE tokens, and the corpus as arrays of its ids.

The first sixteen tokens are special; ids 6 to 15 are reserved.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader, TokenType
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from dg_lsp.errors import InputFileError

NUM_TOKENS = 8192
END_OF_TEXT, MASK, PREFIX, SUFFIX, MIDDLE, END_OF_MIDDLE = range(6)
_NAMES = ("endoftext", "mask", "prefix", "suffix", "middle", "eom", "file", "expand", "delete")
SPECIAL_TOKENS = tuple(f"<|{name}|>" for name in (*_NAMES, *(f"reserved_{i}" for i in range(9, 16))))
BANNED_IDS = tuple(i for i in range(len(SPECIAL_TOKENS)) if i != END_OF_MIDDLE)
"""Special tokens that a completion never contains; END_OF_MIDDLE ends it."""

PRE_TOKENIZER = "qwen2"
"""llama.cpp's LLAMA_VOCAB_PRE_TYPE_QWEN2 (src/llama-vocab.cpp), so that both tokenizers produce the same ids."""
PRE_TOKENIZER_REGEX = (
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
    r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
MAX_TOKEN_CHARS = 24


def train_tokenizer(texts: Iterable[str], num_tokens: int = NUM_TOKENS) -> Tokenizer:
    """Train a BPE tokenizer; the special tokens get the first ids."""
    tokenizer = _with_pre_tokenizer(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=num_tokens,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        max_token_length=MAX_TOKEN_CHARS,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def load_tokenizer(path: Path) -> Tokenizer:
    """Load a tokenizer.json file; InputFileError if it does not exist."""
    if not path.exists():
        raise InputFileError(f"no such file: {path}; `data` or a copy of its work folder makes it")
    return Tokenizer.from_file(str(path))


def tokenizer_from_gguf(path: Path) -> Tokenizer:
    """Extract the tokenizer from a GGUF file of this package, so that training can continue from its weights.

    Raises:
        InputFileError: the file has another pre-tokenizer or other special tokens.
    """
    fields = GGUFReader(path).fields

    def contents(key: str) -> list[str]:
        return list(fields[f"tokenizer.ggml.{key}"].contents()) if f"tokenizer.ggml.{key}" in fields else []

    tokens, types = contents("tokens"), contents("token_type")
    if "".join(contents("pre")) != PRE_TOKENIZER or tuple(tokens[: len(SPECIAL_TOKENS)]) != SPECIAL_TOKENS:
        raise InputFileError(f"{path} has the tokenizer of another model: train a new one with --new-tokenizer")
    vocabulary = {
        token: i for i, (token, kind) in enumerate(zip(tokens, types, strict=True)) if kind != TokenType.UNUSED
    }
    merges = [(left, right) for left, _, right in (merge.partition(" ") for merge in contents("merges"))]
    tokenizer = _with_pre_tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return tokenizer


def _with_pre_tokenizer(model: models.BPE) -> Tokenizer:
    """A tokenizer that splits text as llama.cpp's qwen2 pre-tokenizer does, without a normalizer."""
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRE_TOKENIZER_REGEX), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


NEWLINE = 10
FILES_PER_BATCH = 512  # files tokenized at once; an Encoding takes much more memory than its ids


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
    starts_of = [np.cumsum([0, *map(len, part)], dtype=np.int64) for part in parts[:3]]
    return TokenStore(*(np.concatenate(part) for part in parts), *starts_of)


def write_store(folder: Path, store: TokenStore) -> None:
    """Write one .npy file per array, so that several processes can map them."""
    folder.mkdir(parents=True, exist_ok=True)
    for field in fields(store):
        np.save(folder / f"{field.name}.npy", getattr(store, field.name))


def load_store(folder: Path) -> TokenStore:
    """Memory-map the arrays in `folder`."""
    return TokenStore(**{f.name: np.load(folder / f"{f.name}.npy", mmap_mode="r") for f in fields(TokenStore)})
