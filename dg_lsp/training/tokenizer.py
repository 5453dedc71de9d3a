"""The vocabulary: 8,192 byte-level BPE tokens.

The first sixteen tokens are special; ids 6 to 15 are reserved.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gguf import TokenType
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from dg_lsp.errors import InputFileError
from dg_lsp.gguf import read_header

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
        ModelError: the file does not exist or is damaged.
    """
    values = read_header(path).values

    def contents(key: str) -> Any:
        value = values.get(f"tokenizer.ggml.{key}")
        return [] if value is None else value.read()

    tokens, types = contents("tokens"), contents("token_type")
    if contents("pre") != PRE_TOKENIZER or tuple(tokens[: len(SPECIAL_TOKENS)]) != SPECIAL_TOKENS:
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
