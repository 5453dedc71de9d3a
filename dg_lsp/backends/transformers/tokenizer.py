"""The tokenizer.json of a checkpoint as a `Tokenizer`. transformers' processor would require image libraries."""

import json
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Runtime
from transformers.convert_slow_tokenizer import bytes_to_unicode

from dg_lsp.backends.transformers.errors import map_load_errors
from dg_lsp.canvas.layout import TokenIds, token_ids
from dg_lsp.diffusion.denoiser import checked_ids

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE = "\u2581"
"""The space of SentencePiece vocabularies."""


class CheckpointTokenizer:
    """Encodes text as text: adds no token, and never encodes the spelling of a special token as that token."""

    def __init__(self, folder: Path, special_ids: frozenset[int], vocab_size: int) -> None:
        """`special_ids` are not text, even where the file lists them as ordinary tokens.

        Raises:
            ModelBrokenError: the file is missing or damaged.
        """
        path = folder / "tokenizer.json"
        with map_load_errors(path):
            tree = json.loads(path.read_text(encoding="utf-8"))
            self._added_ids = {int(entry["id"]) for entry in tree.get("added_tokens") or ()}
            self._full = Runtime.from_str(json.dumps(tree))
            self._text = Runtime.from_str(json.dumps(_text_only(tree, special_ids)))
        self._special_ids = special_ids
        self._vocab_size = vocab_size
        is_byte_level = "ByteLevel" in json.dumps(tree.get("decoder"))
        self._letters = {letter: byte for byte, letter in bytes_to_unicode().items()} if is_byte_level else {}
        self._token_bytes = lru_cache(maxsize=None)(self._bytes)

    def encode(self, text: str) -> TokenIds:
        """Shape (N,). A lone surrogate, which UTF-8 cannot encode, becomes `?`."""
        valid = text.encode("utf-8", "replace").decode()
        return token_ids(self._text.encode(valid, add_special_tokens=False).ids)

    def decode(self, ids: TokenIds) -> bytes:
        """Special tokens decode to nothing."""
        return b"".join(map(self._token_bytes, checked_ids("decode", ids, self._vocab_size).tolist()))

    def special(self, spelling: str) -> int | None:
        """See `Tokenizer.special`."""
        found: int | None = self._full.token_to_id(spelling)
        return found

    def _bytes(self, token: int) -> bytes:
        spelling: str | None = self._full.id_to_token(token)
        if token in self._special_ids or spelling is None:
            return b""
        if token in self._added_ids:
            return spelling.encode()
        if self._letters:
            return bytes(self._letters[letter] for letter in spelling if letter in self._letters)
        if match := _BYTE.fullmatch(spelling):
            return bytes([int(match[1], 16)])
        return spelling.replace(_SPACE, " ").encode()


def _text_only(tree: dict[str, Any], special_ids: frozenset[int]) -> dict[str, Any]:
    """The same tokenizer without special tokens, post-processing, truncation and padding."""
    added = [entry for entry in tree.get("added_tokens") or () if entry["id"] not in special_ids]
    return {**tree, "added_tokens": added, "post_processor": None, "truncation": None, "padding": None}
