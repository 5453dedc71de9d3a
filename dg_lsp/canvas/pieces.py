"""Pieces of a chat template as token ids: special tokens by their spelling, all else as text."""

from collections.abc import Iterable

import numpy as np

from dg_lsp.canvas.plan import TokenIds, token_ids
from dg_lsp.canvas.templates import Piece, Special
from dg_lsp.canvas.tokenizer import Tokenizer
from dg_lsp.errors import ModelUnsupportedError


def encoded(pieces: Iterable[Piece], tokenizer: Tokenizer, model: str) -> TokenIds:
    """Shape (number of tokens,). Texts that follow each other are one text to the tokenizer.

    Raises:
        ModelUnsupportedError: the vocabulary of `model` lacks a special token.
    """
    ids: list[TokenIds] = []
    text = ""
    for piece in pieces:
        if isinstance(piece, str):
            text += piece
            continue
        ids += [tokenizer.encode(text), token_ids([_special(piece, tokenizer, model)])]
        text = ""
    return token_ids(np.concatenate([*ids, tokenizer.encode(text)]))


def _special(special: Special, tokenizer: Tokenizer, model: str) -> int:
    token = tokenizer.special(special.spelling)
    if token is None:
        raise ModelUnsupportedError(
            f"{model} has no token {special.spelling}, which its chat template needs; choose another prompt format"
        )
    return token
