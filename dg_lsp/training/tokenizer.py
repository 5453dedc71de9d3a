"""Trains, loads and takes over the byte-level BPE. Knows no rows, and of a GGUF only its vocabulary."""

from collections.abc import Iterable
from pathlib import Path

from gguf import GGUFReader, TokenType
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from dg_lsp.training.vocabulary import NUM_TOKENS, PRE_TOKENIZER, PRE_TOKENIZER_REGEX, SPECIALS

MAX_TOKEN_CHARS = 24


def _dressed(model: models.BPE) -> Tokenizer:
    """A tokenizer that cuts text as llama.cpp's qwen2 pre-tokenizer does; no normaliser."""
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRE_TOKENIZER_REGEX), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def train_tokenizer(texts: Iterable[str], num_tokens: int = NUM_TOKENS) -> Tokenizer:
    """A BPE over `texts` with our special tokens first."""
    tokenizer = _dressed(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=num_tokens,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        max_token_length=MAX_TOKEN_CHARS,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer saved at `path`."""
    return Tokenizer.from_file(str(path))


def tokenizer_of(path: Path) -> Tokenizer:
    """The tokenizer inside a GGUF of ours, so that training goes on with the ids its weights know.

    Raises ValueError for a file with another pre-tokenizer or other special tokens.
    """
    fields = GGUFReader(path).fields

    def contents(key: str) -> list[str]:
        return list(fields[f"tokenizer.ggml.{key}"].contents()) if f"tokenizer.ggml.{key}" in fields else []

    tokens, kinds = contents("tokens"), contents("token_type")
    if "".join(contents("pre")) != PRE_TOKENIZER or tuple(tokens[: len(SPECIALS)]) != SPECIALS:
        raise ValueError(f"{path} has not the tokenizer of this room: train a new one with --new-tokenizer")
    vocabulary = {
        token: i for i, (token, kind) in enumerate(zip(tokens, kinds, strict=True)) if kind != TokenType.UNUSED
    }
    merges = [(left, right) for left, _, right in (merge.partition(" ") for merge in contents("merges"))]
    tokenizer = _dressed(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.add_special_tokens(list(SPECIALS))
    return tokenizer
