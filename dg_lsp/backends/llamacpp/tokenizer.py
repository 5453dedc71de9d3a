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
    """Encodes text without adding tokens; the spelling of a special token in a text is ordinary text.

    The model owns and closes it. Only for the model's thread.
    """

    def __init__(self, vocabulary: Any, vocab_size: int) -> None:
        self._api = library().api
        self._vocabulary = vocabulary
        self._vocab_size = vocab_size
        self._pieces: dict[int, bytes] = {}
        """Filled on demand: all tokens of a large vocabulary take a third of a second."""

    def encode(self, text: str) -> TokenIds:
        """Shape (N,). A lone surrogate, which UTF-8 does not allow, becomes `?`."""
        return self._tokenized(text, with_specials=False)

    def special(self, spelling: str) -> int | None:
        """See `Tokenizer.special`."""
        ids = self._tokenized(spelling, with_specials=True)
        return int(ids[0]) if len(ids) == 1 else None

    def _tokenized(self, text: str, *, with_specials: bool) -> TokenIds:
        self._check_open()
        # bytes that are not UTF-8 make llama.cpp throw through C, which ends the process
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

    def specials(self) -> SpecialTokens:
        """Special tokens of the file; llama.cpp also recognises older keys and usual spellings."""
        self._check_open()
        api, vocabulary = self._api, self._vocabulary
        control = tuple(i for i in range(self._vocab_size) if api.llama_vocab_is_control(vocabulary, i))
        start = api.llama_vocab_bos(vocabulary) if api.llama_vocab_get_add_bos(vocabulary) else -1
        prefix, suffix, middle, separator = (
            int(getattr(api, f"llama_vocab_fim_{name}")(vocabulary)) for name in ("pre", "suf", "mid", "sep")
        )
        is_fim = min(prefix, suffix, middle) >= 0 and len({prefix, suffix, middle}) == 3
        return SpecialTokens(
            control_ids=control,
            end_ids=tuple(i for i in control if api.llama_vocab_is_eog(vocabulary, i)),
            start_ids=(start,) if start >= 0 else (),
            fim=FimTokens(prefix, suffix, middle, FimOrder.PREFIX_FIRST) if is_fim else None,
            file_separator_id=separator if separator >= 0 else None,
        )

    def close(self) -> None:
        """Called before the model is freed."""
        self._vocabulary = None

    def _check_open(self) -> None:
        if self._vocabulary is None:
            raise BackendError("the model is closed; open it again")

    def _piece(self, token: int) -> bytes:
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._pieces[token] = self._native_piece(token)
        return piece

    def _native_piece(self, token: int) -> bytes:
        self._check_open()
        text = self._api.llama_vocab_get_text(self._vocabulary, token) or b""
        # llama.cpp throws through C here as well if the vocabulary is damaged
        if text.decode("utf-8", "replace").encode() != text:
            raise BackendError(f"token {token} of the model is not spelled in UTF-8; its file is damaged")
        size = _PIECE_BYTES
        for _ in range(2):
            buffer = ctypes.create_string_buffer(size)
            count = self._api.llama_token_to_piece(self._vocabulary, token, buffer, size, 0, False)
            if count >= 0:
                return buffer.raw[:count]
            size = -count
        return b""
