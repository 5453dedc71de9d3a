"""llama.cpp's vocabulary as a `Tokenizer`."""

import ctypes
from typing import Any

import numpy as np

from dg_lsp.backends.llamacpp.library import library
from dg_lsp.canvas.layout import TokenIds, token_ids
from dg_lsp.canvas.spec import FimOrder, FimTokens, SpecialTokens
from dg_lsp.diffusion.denoiser import checked_ids
from dg_lsp.errors import BackendError

_PIECE_BYTES = 256


class LlamaTokenizer:
    """Encodes text as text: no token is added, and a special token's spelling is not that token.

    Belongs to its model: closed with it. Only for the model's thread.
    """

    def __init__(self, vocabulary: Any, vocab_size: int) -> None:
        self._api = library().api
        self._vocabulary = vocabulary
        self._vocab_size = vocab_size
        self._pieces: dict[int, bytes] = {}
        """Filled as ids are seen: all of a large vocabulary would take a third of a second at load."""

    def encode(self, text: str) -> TokenIds:
        """Shape (N,). A lone surrogate, which UTF-8 cannot hold, becomes `?`."""
        return self._tokenized(text, with_specials=False)

    def special(self, spelling: str) -> int | None:
        """See `Tokenizer.special`."""
        ids = self._tokenized(spelling, with_specials=True)
        return int(ids[0]) if len(ids) == 1 else None

    def _tokenized(self, text: str, *, with_specials: bool) -> TokenIds:
        self._check_open()
        # llama.cpp throws through C on bytes that are no UTF-8, which ends the process.
        raw = text.encode("utf-8", "replace")
        capacity = len(raw) + 8
        for _ in range(2):
            ids = np.empty(capacity, dtype=np.int32)
            pointer = ids.ctypes.data_as(ctypes.POINTER(self._api.llama_token))
            count = self._api.llama_tokenize(self._vocabulary, raw, len(raw), pointer, capacity, False, with_specials)
            if count >= 0:
                return token_ids(ids[:count])
            capacity = -count
        raise BackendError("llama.cpp: the text cannot be tokenized; see `dg-lsp doctor`")

    def decode(self, ids: TokenIds) -> bytes:
        """Special tokens decode to nothing."""
        return b"".join(map(self._piece, checked_ids("decode", ids, self._vocab_size).tolist()))

    def _piece(self, token: int) -> bytes:
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._pieces[token] = self._native_piece(token)
        return piece

    def specials(self) -> SpecialTokens:
        """What the file says of its special tokens; llama.cpp knows older keys and usual spellings, too."""
        self._check_open()
        api, vocabulary = self._api, self._vocabulary
        control = tuple(i for i in range(self._vocab_size) if api.llama_vocab_is_control(vocabulary, i))
        ends = tuple(i for i in control if api.llama_vocab_is_eog(vocabulary, i))
        start = api.llama_vocab_bos(vocabulary) if api.llama_vocab_get_add_bos(vocabulary) else -1
        prefix, suffix, middle = (
            int(read(vocabulary))
            for read in (api.llama_vocab_fim_pre, api.llama_vocab_fim_suf, api.llama_vocab_fim_mid)
        )
        separator = int(api.llama_vocab_fim_sep(vocabulary))
        is_fim = min(prefix, suffix, middle) >= 0 and len({prefix, suffix, middle}) == 3
        return SpecialTokens(
            control_ids=control,
            end_ids=ends,
            start_ids=(start,) if start >= 0 else (),
            fim=FimTokens(prefix, suffix, middle, FimOrder.PREFIX_FIRST) if is_fim else None,
            file_separator_id=separator if separator >= 0 else None,
        )

    def close(self) -> None:
        """The model is about to be freed."""
        self._vocabulary = None

    def _check_open(self) -> None:
        if self._vocabulary is None:
            raise BackendError("the model is closed; open it again")

    def _native_piece(self, token: int) -> bytes:
        self._check_open()
        text = self._api.llama_vocab_get_text(self._vocabulary, token) or b""
        # llama.cpp throws through C here too: a damaged vocabulary shows in its spelling.
        if text.decode("utf-8", "replace").encode() != text:
            raise BackendError(f"the model's token {token} is spelled in bytes that are no text; its file is damaged")
        size = _PIECE_BYTES
        for _ in range(2):
            buffer = ctypes.create_string_buffer(size)
            count = self._api.llama_token_to_piece(self._vocabulary, token, buffer, size, 0, False)
            if count >= 0:
                return buffer.raw[:count]
            size = -count
        return b""
