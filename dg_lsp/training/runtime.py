"""A GGUF under llama.cpp for measurements: causal prompt in the cache, canvases in both directions over it.

Small on purpose: the product's runtime is `dg_lsp.backends`. Here every logit can be looked at.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import llama_cpp.llama_cpp as llama
import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.float32]
CONTEXT = 2048
MAX_PIECE = 128  # bytes of the longest token


@dataclass(frozen=True, slots=True)
class Answer:
    """What was generated, and in how many forward passes after the prompt."""

    ids: tuple[int, ...]
    passes: int


@llama.llama_log_callback
def _silent(level: int, text: bytes, data: ctypes.c_void_p) -> None:
    """llama.cpp talks a lot while it loads."""


class Runtime:
    """One model, one sequence."""

    def __init__(self, path: Path, threads: int = 2) -> None:
        llama.llama_log_set(_silent, ctypes.c_void_p())
        llama.llama_backend_init()
        model_params = llama.llama_model_default_params()
        model_params.n_gpu_layers = 0
        self.model = llama.llama_model_load_from_file(str(path).encode(), model_params)
        if not self.model:
            raise ValueError(f"{path} is no model that llama.cpp can load")
        params = llama.llama_context_default_params()
        params.n_ctx = params.n_batch = CONTEXT
        params.n_ubatch = 512
        params.n_threads = params.n_threads_batch = threads
        # the CPU's flash kernel is slower than plain attention below 64 queries
        params.flash_attn_type = llama.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self.context = llama.llama_init_from_model(self.model, params)
        self.memory = llama.llama_get_memory(self.context)
        self.vocab = llama.llama_model_get_vocab(self.model)
        self.num_tokens = llama.llama_vocab_n_tokens(self.vocab)
        self.batch = llama.llama_batch_init(CONTEXT, 0, 1)
        pieces = [self.piece(token) for token in range(self.num_tokens)]
        self.pieces, self.has_newline = pieces, np.array([b"\n" in piece for piece in pieces])

    def close(self) -> None:
        """Frees what llama.cpp holds."""
        llama.llama_batch_free(self.batch)
        llama.llama_free(self.context)
        llama.llama_model_free(self.model)

    def metadata(self, key: str) -> str | None:
        """A metadata value as llama.cpp shows it, or None; arrays are not shown."""
        buffer = ctypes.create_string_buffer(4096)
        size = llama.llama_model_meta_val_str(self.model, key.encode(), buffer, len(buffer))
        return buffer.value.decode() if size >= 0 else None

    def piece(self, token: int) -> bytes:
        """The bytes of one token."""
        buffer = ctypes.create_string_buffer(MAX_PIECE)
        size = llama.llama_token_to_piece(self.vocab, token, buffer, MAX_PIECE, 0, False)
        return buffer.raw[: max(0, size)]

    def encode(self, text: str) -> list[int]:
        """llama.cpp's tokenization, specials not parsed."""
        raw = text.encode()
        tokens = (llama.llama_token * (len(raw) + 8))()
        size = llama.llama_tokenize(self.vocab, raw, len(raw), tokens, len(tokens), False, False)
        return list(tokens[:size])

    def text(self, ids: Sequence[int]) -> str:
        """The text of tokens."""
        return b"".join(self.pieces[i] for i in ids).decode("utf-8", "replace")

    def decode(
        self, ids: Sequence[int] | npt.NDArray[np.int64], start: int, *, causal: bool, wanted: npt.NDArray[np.bool_]
    ) -> Logits:
        """Logits (wanted.sum(), num_tokens) of `ids` at positions from `start`; a view until the next call."""
        self.batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            self.batch.token[i], self.batch.pos[i] = int(token), start + i
            self.batch.n_seq_id[i], self.batch.seq_id[i][0] = 1, 0
            self.batch.logits[i] = bool(wanted[i])
        llama.llama_set_causal_attn(self.context, causal)
        if status := llama.llama_decode(self.context, self.batch):
            raise RuntimeError(f"llama_decode returned {status}")
        return np.ctypeslib.as_array(llama.llama_get_logits(self.context), (int(wanted.sum()), self.num_tokens))

    def forget(self, start: int) -> None:
        """Drops the cache from position `start` on."""
        llama.llama_memory_seq_rm(self.memory, 0, start, -1)

    def prefill(self, prompt: Sequence[int]) -> Logits:
        """Decodes the whole prompt; the logits after its last token, (1, num_tokens)."""
        self.forget(0)
        return self.decode(prompt, 0, causal=True, wanted=np.arange(len(prompt)) == len(prompt) - 1)
