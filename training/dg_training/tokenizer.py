"""Vocabularies of byte-level BPE: read from a GGUF file, pruned to what code needs, and written to one.

A pruned vocabulary begins with our sixteen special tokens, of which ids 6 to 15 are reserved. It gives the same tokens
for every text whose tokens are all kept: with a token, all tokens that arise on the way to it are kept, so the same
merges are applied in the same order. Other texts become shorter tokens.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from dg_lsp.canvas.fim import FIM_FAMILIES
from dg_lsp.errors import ModelUnsupportedError
from dg_lsp.gguf import GGUFHeader, Value, flag, int32s, text, texts, uint32

Kind = gguf.TokenType
END_OF_TEXT, MASK, PREFIX, SUFFIX, MIDDLE, END_OF_MIDDLE = range(6)
_NAMES = ("endoftext", "mask", "prefix", "suffix", "middle", "eom", "file", "expand", "delete")
SPECIAL_TOKENS = tuple(f"<|{name}|>" for name in (*_NAMES, *(f"reserved_{i}" for i in range(9, 16))))
BANNED_IDS = tuple(i for i in range(len(SPECIAL_TOKENS)) if i != END_OF_MIDDLE)
"""Special tokens that a completion never contains; END_OF_MIDDLE ends it."""

BYTE_LEVEL = "gpt2"
"""Value of `tokenizer.ggml.model`."""
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_ENDINGS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
PRE_TOKENIZERS = {
    "qwen2": (_ENDINGS + _WORDS % "",),
    "llama-bpe": (_ENDINGS + _WORDS % "{1,3}",),
    "gpt-2": (_GPT2,),
    "smollm": (r"\p{N}", _GPT2),  # digits one by one, then the pieces between them
}
"""Regular expressions by llama.cpp's names, applied one after the other."""
_ADVICE = "use a checkpoint with the byte-level tokenizer of Qwen, Llama 3 or SmolLM"
Merge = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Tokens as a GGUF file lists them, and the merges that make them, the first one to be applied first."""

    tokens: tuple[str, ...]
    kinds: tuple[int, ...]  # `gguf.TokenType` of each
    merges: tuple[Merge, ...]
    pre: str  # pre-tokenizer, a key of PRE_TOKENIZERS
    start_id: int | None  # every text begins with it
    end_id: int

    def tokenizer(self) -> Tokenizer:
        """The same tokens as from llama.cpp."""
        used = (Kind.NORMAL, Kind.CONTROL, Kind.USER_DEFINED)
        ids = {token: i for i, token in enumerate(self.tokens) if self.kinds[i] in used}
        tokenizer = Tokenizer(models.BPE(ids, list(self.merges)))
        splits = [pre_tokenizers.Split(Regex(regex), behavior="isolated") for regex in PRE_TOKENIZERS[self.pre]]
        to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, to_bytes])
        tokenizer.decoder = decoders.ByteLevel()
        for token, i in ids.items():
            if self.kinds[i] != Kind.NORMAL:
                tokenizer.add_tokens([AddedToken(token, normalized=False, special=self.kinds[i] == Kind.CONTROL)])
        return tokenizer

    def values(self) -> dict[str, Value]:
        """The metadata of the tokenizer, with the keys of llama-server's /infill. Only for a pruned vocabulary."""
        ids = {"bos": END_OF_TEXT, "eos": END_OF_TEXT, "eot": END_OF_MIDDLE, "mask": MASK}
        ids |= {"fim_pre": PREFIX, "fim_suf": SUFFIX, "fim_mid": MIDDLE}
        return {
            "tokenizer.ggml.model": text(BYTE_LEVEL),
            "tokenizer.ggml.pre": text(self.pre),
            "tokenizer.ggml.tokens": texts(self.tokens),
            "tokenizer.ggml.token_type": int32s(self.kinds),
            "tokenizer.ggml.merges": texts([" ".join(merge) for merge in self.merges]),
            "tokenizer.ggml.add_bos_token": flag(self.start_id is not None),
            **{f"tokenizer.ggml.{name}_token_id": uint32(token) for name, token in ids.items()},
        }


def read_vocabulary(header: GGUFHeader) -> Vocabulary:
    """The vocabulary of a GGUF file.

    Raises:
        ModelUnsupportedError: a tokenizer of another kind.
        IndexError, TypeError, ValueError: a value is missing or damaged.
    """

    def value(key: str, default: Any = None) -> Any:
        return header.read(f"tokenizer.ggml.{key}", default)

    model = value("model", "")
    pre = value("pre", "default")
    if model != BYTE_LEVEL or pre not in PRE_TOKENIZERS:
        raise ModelUnsupportedError(f"{header.path}: tokenizer {model} {pre} cannot be pruned: {_ADVICE}")
    tokens = value("tokens", [])
    kinds = value("token_type", [])
    if not tokens or len(tokens) != len(kinds):
        raise ValueError(f"{len(tokens)} tokens of {len(kinds)} types")
    merges = tuple((left, right) for left, _, right in (merge.partition(" ") for merge in value("merges", [])))
    start_id = value("bos_token_id") if value("add_bos_token", False) else None
    return Vocabulary(tuple(tokens), tuple(kinds), merges, pre, start_id, value("eos_token_id"))


@dataclass(frozen=True, slots=True)
class PrunedVocabulary:
    """A vocabulary that begins with our special tokens, and where its tokens come from."""

    vocabulary: Vocabulary
    source_ids: npt.NDArray[np.int64]  # shape (num_tokens,): id in the source, -1 for a new token

    def rows(self, weights: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """The rows of an embedding or output matrix; a new token gets their mean."""
        rows = weights[np.maximum(self.source_ids, 0)]
        is_new = self.source_ids < 0
        rows[is_new] = rows[~is_new].mean(0)
        return rows


def count_tokens(tokenizer: Tokenizer, documents: Iterable[str]) -> Counter[int]:
    """How often each token occurs."""
    counts: Counter[int] = Counter()
    for encoding in tokenizer.encode_batch_fast(list(documents), add_special_tokens=False):
        counts.update(encoding.ids)
    return counts


def prune(source: Vocabulary, counts: Mapping[int, int], num_tokens: int) -> PrunedVocabulary:
    """At most `num_tokens` tokens: the most frequent ones first, then those with the lowest ids of ASCII letters."""
    return restrict(source, sorted(_closed_selection(source, counts, num_tokens - len(SPECIAL_TOKENS))))


def restrict(source: Vocabulary, chosen: Sequence[int]) -> PrunedVocabulary:
    """Our special tokens, then these tokens of the source."""
    names = {source.tokens[i] for i in chosen}
    merges = tuple(merge for merge in source.merges if names.issuperset((*merge, "".join(merge))))
    vocabulary = replace(
        source,
        tokens=(*SPECIAL_TOKENS, *(source.tokens[i] for i in chosen)),
        kinds=(*([int(Kind.CONTROL)] * len(SPECIAL_TOKENS)), *(source.kinds[i] for i in chosen)),
        merges=merges,
        start_id=None if source.start_id is None else END_OF_TEXT,
        end_id=END_OF_MIDDLE,
    )
    return PrunedVocabulary(vocabulary, np.array([*_special_sources(source), *chosen], np.int64))


def _special_sources(source: Vocabulary) -> list[int]:
    """For each of our special tokens the source's token that means the same, or -1."""
    spellings = {token: i for i, token in enumerate(source.tokens)}
    source_ids = dict.fromkeys(range(len(SPECIAL_TOKENS)), -1)
    source_ids[END_OF_TEXT] = source.end_id if source.start_id is None else source.start_id
    source_ids[END_OF_MIDDLE] = source.end_id
    fim = next((fim for family in FIM_FAMILIES.values() if (fim := family.tokens(spellings))), None)
    if fim is not None and fim.middle_id is not None:
        source_ids |= {PREFIX: fim.prefix_id, SUFFIX: fim.suffix_id, MIDDLE: fim.middle_id}
    return list(source_ids.values())


def _closed_selection(source: Vocabulary, counts: Mapping[int, int], num_tokens: int) -> set[int]:
    """Ids of the tokens to keep; with a token all that arise on the way to it."""
    ids = {token: i for i, token in enumerate(source.tokens) if source.kinds[i] == Kind.NORMAL}
    ranks = {merge: rank for rank, merge in reversed(list(enumerate(source.merges)))}
    kept = {i for token, i in ids.items() if len(token) == 1}  # bytes, which any text may need
    user_defined = [i for i, kind in enumerate(source.kinds) if kind == Kind.USER_DEFINED]
    kept |= {i for i in user_defined if counts.get(i) or source.tokens[i].isspace()}
    frequent = sorted((i for i in ids.values() if counts.get(i)), key=lambda i: (-counts[i], i))
    unused = (i for i in ids.values() if not counts.get(i) and source.tokens[i].lstrip("Ġ").isascii())
    for i in (*frequent, *unused):
        if i in kept:
            continue
        needed = {ids[part] for part in _parts(source.tokens[i], ranks)} | {i}
        if len(kept) + len(needed - kept) <= num_tokens:
            kept |= needed
    return kept


def _parts(token: str, ranks: Mapping[Merge, int]) -> set[str]:
    """The tokens that arise while merges make this one, its characters included; empty if they do not make it."""
    pieces = list(token)
    parts = set(token)
    while len(pieces) > 1:
        pairs = [(ranks[pair], at) for at, pair in enumerate(pairwise(pieces)) if pair in ranks]
        if not pairs:
            return set()
        _, at = min(pairs)
        pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
        parts.add(pieces[at])
    return parts
