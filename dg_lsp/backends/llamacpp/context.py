"""One llama.cpp context: decode, read logits, copy and crop sequences. Knows nothing of slots or canvases."""

import ctypes
from typing import Any

import numpy as np

from dg_lsp.backends.llamacpp.batch import Batch
from dg_lsp.backends.llamacpp.budget import ContextBudget
from dg_lsp.backends.llamacpp.failures import context_error, decode_error
from dg_lsp.backends.llamacpp.library import library
from dg_lsp.backends.llamacpp.model import LlamaModel
from dg_lsp.diffusion.denoiser import Floats
from dg_lsp.errors import BackendError, ModelUnsupportedError

NO_CELLS = 1
"""`llama_decode`'s status when the KV cache has no room; nothing was changed then."""


class LlamaContext:
    """Owns a native context and its batch. One thread only.

    Callers check sizes before they call: a batch larger than the context was made for aborts the process.
    """

    def __init__(self, model: LlamaModel, budget: ContextBudget, *, flash_attention: bool) -> None:
        native = library()
        api = native.api
        params = api.llama_context_default_params()
        params.n_ctx = budget.context_length
        params.n_batch = params.n_ubatch = budget.batch_tokens
        params.n_seq_max = budget.num_sequences
        # The graph is reserved for so many rows of logits; by default for a whole batch of them.
        params.n_outputs_max = params.n_outputs_max_per_seq = max(budget.canvas_tokens, budget.num_sequences)
        params.n_threads = params.n_threads_batch = 1
        params.kv_unified = True
        params.swa_full = True  # a cropped prefix must still be there
        params.no_perf = True
        params.attention_type = api.LLAMA_ATTENTION_TYPE_CAUSAL
        params.flash_attn_type = (
            api.LLAMA_FLASH_ATTN_TYPE_AUTO if flash_attention else api.LLAMA_FLASH_ATTN_TYPE_DISABLED
        )
        native.log.forget_trouble()
        self._api = api
        self._model = model
        self._vocab_size = model.vocab_size
        self._handle: Any = api.llama_init_from_model(model.borrow(), params)
        if not self._handle:
            self._handle = None
            model.give_back()
            raise context_error(native.log.trouble)
        self._memory = api.llama_get_memory(self._handle)
        self._is_causal = True
        self._logits: Floats = np.empty((0, 0), dtype=np.float32)
        self._logits_address = 0
        if bool(self._memory) != model.has_cache or api.llama_pooling_type(self._handle) != api.LLAMA_POOLING_TYPE_NONE:
            self.close()
            raise ModelUnsupportedError(
                f"{model.path} keeps no prompt in memory or only makes embeddings; use a causal language model"
            )
        self.num_cells = int(api.llama_n_ctx(self._handle))
        self.batch = Batch(api, int(api.llama_n_ubatch(self._handle)), model.embedding_length)

    def decode(self, *, causal: bool) -> int:
        """Runs the batch; 0, or `NO_CELLS`.

        Raises:
            BackendError: the runtime failed. What the batch's sequences hold is unknown then.
        """
        self._check_open()
        # Logs a line for each call, through Python.
        if causal != self._is_causal:
            self._api.llama_set_causal_attn(self._handle, causal)
            self._is_causal = causal
        status = int(self._api.llama_decode(self._handle, self.batch.native))
        if status not in (0, NO_CELLS):
            raise decode_error(status)
        return status

    def logits(self, num_rows: int) -> Floats:
        """Shape (num_rows, V): llama.cpp's own memory, to be used up before the next decode; may be written to."""
        address = ctypes.addressof(self._api.llama_get_logits(self._handle).contents)
        # Making an array of foreign memory costs as much as reducing a row; the memory rarely moves.
        if address != self._logits_address or num_rows > len(self._logits):
            size = num_rows * self._vocab_size
            memory = (ctypes.c_float * size).from_address(address)
            self._logits = np.ctypeslib.as_array(memory).reshape(num_rows, self._vocab_size)
            self._logits_address = address
        return self._logits[:num_rows]

    def crop(self, sequence: int, length: int) -> None:
        """The sequence keeps its first `length` positions."""
        self._check_open()
        if not self._api.llama_memory_seq_rm(self._memory, sequence, length, -1):
            raise BackendError("llama.cpp: the KV cache cannot be cropped; use another model")

    def share(self, source: int, target: int) -> None:
        """The target sequence, empty until now, holds the source's cells too."""
        self._check_open()
        self._api.llama_memory_seq_cp(self._memory, source, target, 0, -1)

    def set_threads(self, threads: int) -> None:
        """CPU threads of the following decodes."""
        self._check_open()
        self._api.llama_set_n_threads(self._handle, threads, threads)

    def _check_open(self) -> None:
        if self._handle is None:
            raise BackendError("the model is closed; open it again")

    @property
    def native(self) -> Any:
        """For samplers that run on the device."""
        return self._handle

    def close(self) -> None:
        """Frees the context. Harmless when repeated."""
        if self._handle:
            self._api.llama_free(self._handle)
            self._handle = None
            self._model.give_back()
