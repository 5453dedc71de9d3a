"""A checkpoint's own tokenizer.json as a `Tokenizer`. A processor would want image libraries."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer as Runtime

from dg_lsp.backends.checks import checked_ids
from dg_lsp.backends.hf.failures import loading
from dg_lsp.canvas.layout import TokenIds, token_ids

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE = "\u2581"
"""What SentencePiece writes for a space."""


class HfTokenizer:
    """Encodes text as text: no token is added, and a special token's spelling is not that token."""

    def __init__(self, folder: Path, special_ids: frozenset[int], vocab_size: int) -> None:
        """`special_ids` are no text, whatever the file calls them.

        Raises:
            ModelBrokenError: the file is none, or damaged.
        """
        path = folder / "tokenizer.json"
        with loading(path):
            tree = json.loads(path.read_text(encoding="utf-8"))
            self._added = {int(entry["id"]) for entry in tree.get("added_tokens") or ()}
            self._full = Runtime.from_str(json.dumps(tree))
            self._text = Runtime.from_str(json.dumps(_without(tree, special_ids)))
        self._special_ids = special_ids
        self._vocab_size = vocab_size
        self._letters = _byte_letters() if "ByteLevel" in json.dumps(tree.get("decoder")) else None
        self._pieces: dict[int, bytes] = {}
        """Filled as ids are seen."""

    def encode(self, text: str) -> TokenIds:
        """Shape (N,). A lone surrogate, which UTF-8 cannot hold, becomes `?`."""
        whole = text.encode("utf-8", "replace").decode()
        return token_ids(self._text.encode(whole, add_special_tokens=False).ids)

    def decode(self, ids: TokenIds) -> bytes:
        """Special tokens decode to nothing."""
        return b"".join(map(self._piece, checked_ids("decode", ids, self._vocab_size).tolist()))

    def special(self, spelling: str) -> int | None:
        """See `Tokenizer.special`."""
        found: int | None = self._full.token_to_id(spelling)
        return found

    def _piece(self, token: int) -> bytes:
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._pieces[token] = self._bytes(token)
        return piece

    def _bytes(self, token: int) -> bytes:
        spelling = self._full.id_to_token(token)
        if token in self._special_ids or spelling is None:
            return b""
        if token in self._added:
            return str(spelling).encode()
        if self._letters is not None:
            return bytes(self._letters[letter] for letter in spelling if letter in self._letters)
        if match := _BYTE.fullmatch(spelling):
            return bytes([int(match[1], 16)])
        return str(spelling).replace(_SPACE, " ").encode()


def _without(tree: dict[str, Any], special_ids: frozenset[int]) -> dict[str, Any]:
    """The tokenizer that finds no special token in a text, adds none and cuts nothing off."""
    added = [entry for entry in tree.get("added_tokens") or () if entry["id"] not in special_ids]
    return {**tree, "added_tokens": added, "post_processor": None, "truncation": None, "padding": None}


def _byte_letters() -> dict[str, int]:
    """GPT-2's printable stand-ins for the 256 bytes."""
    plain = np.concatenate([np.arange(33, 127), np.arange(161, 173), np.arange(174, 256)]).tolist()
    others = [byte for byte in range(256) if byte not in set(plain)]
    return {chr(byte): byte for byte in plain} | {chr(256 + number): byte for number, byte in enumerate(others)}
