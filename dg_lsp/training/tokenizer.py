"""Trains and loads the byte-level BPE. The only file that imports `tokenizers`; knows no files or rows."""

from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from dg_lsp.training.vocabulary import NUM_TOKENS, PRE_TOKENIZER_REGEX, SPECIALS

MAX_TOKEN_CHARS = 24


def train_tokenizer(texts: Iterable[str], num_tokens: int = NUM_TOKENS) -> Tokenizer:
    """A BPE over `texts` with our special tokens first and llama.cpp's qwen2 pre-tokenizer; no normaliser."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRE_TOKENIZER_REGEX), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
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
