"""One llama.cpp context: decodes batches, reads logits, copies and crops sequences.

It starts small and grows; the sequences keep their content then. It has no notion of slots and canvases.
"""

import ctypes
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dg_lsp.backends.llamacpp.errors import context_error, decode_error
from dg_lsp.backends.llamacpp.library import library
from dg_lsp.backends.llamacpp.memory_estimate import (
    ADVICE,
    PROMPTS,
    ContextBudget,
    MemoryEstimate,
    check_fits,
    estimate_context,
)
from dg_lsp.backends.llamacpp.model import LlamaModel
from dg_lsp.canvas.layout import Flags, TokenIds
from dg_lsp.diffusion.denoiser import Floats
from dg_lsp.errors import BackendError, ModelError, ModelMemoryError, ModelUnsupportedError

Outputs = Flags | npt.NDArray[np.int8] | int
"""Which tokens of a batch need logits, shape (N,), or one value for all of them."""


class Batch:
    """A native batch over numpy arrays. Writing it token by token through ctypes costs more than a small step.

    Every token belongs to one sequence, so the table of sequence lists is written once.
    """

    def __init__(self, api: Any, capacity: int, embedding_length: int) -> None:
        self.capacity = capacity
        self._embedding_length = embedding_length
        self._tokens = np.zeros(capacity, dtype=np.int32)
        self._positions = np.zeros(capacity, dtype=np.int32)
        self._counts = np.ones(capacity, dtype=np.int32)
        self._sequences = np.zeros(capacity, dtype=np.int32)
        self._outputs = np.zeros(capacity, dtype=np.int8)
        step = self._sequences.itemsize
        self._lists = (self._sequences.ctypes.data + step * np.arange(capacity, dtype=np.uintp)).astype(np.uintp)
        self._rows: Floats | None = None
        batch = api.llama_batch()
        batch.pos = _pointer(self._positions, api.llama_pos)
        batch.n_seq_id = _pointer(self._counts, ctypes.c_int32)
        batch.seq_id = _pointer(self._lists, ctypes.POINTER(api.llama_seq_id))
        batch.logits = _pointer(self._outputs, ctypes.c_int8)
        self._token_pointer = _pointer(self._tokens, api.llama_token)
        self.native = batch

    def put_tokens(self, ids: TokenIds, positions: TokenIds, sequences: TokenIds | int, outputs: Outputs) -> None:
        """Fills the batch with N tokens, at most `capacity`; arrays of shape (N,), or one value for all tokens."""
        count = len(ids)
        self._tokens[:count] = ids
        self.native.token, self.native.embd = self._token_pointer, None
        self._put_places(count, positions, sequences, outputs)

    def put_rows(self, rows: Floats, positions: TokenIds, sequences: TokenIds | int) -> None:
        """Fills the batch with N embeddings, shape (N, embedding length), all of which need logits."""
        if self._rows is None:
            self._rows = np.zeros((self.capacity, self._embedding_length), dtype=np.float32)
        count = len(rows)
        # copied into memory that lives as long as the batch: the address of a temporary would dangle
        self._rows[:count] = rows
        self.native.token, self.native.embd = None, _pointer(self._rows, ctypes.c_float)
        self._put_places(count, positions, sequences, 1)

    def _put_places(self, count: int, positions: TokenIds, sequences: TokenIds | int, outputs: Outputs) -> None:
        self._positions[:count] = positions
        self._sequences[:count] = sequences
        self._outputs[:count] = outputs
        self.native.n_tokens = count


def _pointer(array: npt.NDArray[Any], kind: Any) -> Any:
    return array.ctypes.data_as(ctypes.POINTER(kind))


NO_CELLS = 1
"""`llama_decode`'s status when the KV cache is full; the cache is unchanged."""


class LlamaContext:
    """Owns a native context and its batch. One thread only.

    Callers check sizes first: a batch that is larger than the context allows aborts the process.
    """

    def __init__(self, model: LlamaModel, budget: ContextBudget, *, flash_attention: bool) -> None:
        """Starts with the budget's `first_length`.

        Raises:
            ModelMemoryError: there is not enough memory.
            ModelUnsupportedError: llama.cpp cannot run the model this way.
        """
        self._native = library()
        self._api = self._native.api
        self._model = model
        self._vocab_size = model.vocab_size
        self._budget = budget
        self._flash = flash_attention
        self._threads = 1
        self._is_closed = False
        self._handle: Any = None
        self.num_cells = 0
        self.batch: Any = None
        self._check_room(budget.first_length, ADVICE)
        try:
            self._open(budget.first_length)
        except ModelError:
            self.close()
            raise

    def _open(self, num_cells: int) -> None:
        api, budget, model = self._api, self._budget, self._model
        params = api.llama_context_default_params()
        params.n_ctx = num_cells
        params.n_batch = params.n_ubatch = min(budget.batch_tokens, num_cells)
        params.n_seq_max = budget.num_sequences
        # memory is reserved for this many rows of logits; the default is a whole batch
        outputs = max(min(budget.canvas_tokens, num_cells), budget.num_sequences)
        params.n_outputs_max = params.n_outputs_max_per_seq = outputs
        params.n_threads = params.n_threads_batch = self._threads
        params.kv_unified = True
        params.swa_full = True  # keeps what is needed after a crop
        params.no_perf = True
        params.attention_type = api.LLAMA_ATTENTION_TYPE_CAUSAL
        params.flash_attn_type = api.LLAMA_FLASH_ATTN_TYPE_AUTO if self._flash else api.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self._native.problems.clear()
        self._handle = api.llama_init_from_model(model.native, params) or None
        if not self._handle:
            raise context_error(self._native.problems)
        self._memory = api.llama_get_memory(self._handle)
        self._is_causal = True
        self._logits: Floats = np.empty((0, 0), dtype=np.float32)
        self._logits_address = 0
        if bool(self._memory) != model.has_cache or api.llama_pooling_type(self._handle) != api.LLAMA_POOLING_TYPE_NONE:
            raise ModelUnsupportedError(
                f"{model.path} has no KV cache or only computes embeddings; use a causal language model"
            )
        self.num_cells = int(api.llama_n_ctx(self._handle))
        capacity = int(api.llama_n_ubatch(self._handle))
        if self.batch is None or self.batch.capacity != capacity:
            self.batch = Batch(api, capacity, model.embedding_length)

    def grow(self, num_missing: int, sequences: Sequence[int] = ()) -> None:
        """Adds at least this many cells if the budget allows. The given sequences keep their content, others are lost.

        Raises:
            ModelMemoryError: there is not enough memory; nothing has changed.
            BackendError: the content of all sequences is lost.
        """
        refusal: ModelMemoryError | None = None
        for num_cells in self._budget.larger_sizes(self.num_cells, num_missing):
            try:
                self._resize(num_cells, sequences)
            except ModelMemoryError as error:
                refusal = error
            else:
                return
        if refusal is not None:
            raise refusal

    def _resize(self, num_cells: int, sequences: Sequence[int]) -> None:
        self._check_open()
        sizes = {sequence: int(self._api.llama_state_seq_get_size(self._handle, sequence)) for sequence in sequences}
        self._check_room(num_cells, "shorten the prompt or free memory", copied=sum(sizes.values()))
        states = {sequence: self._state(sequence, size) for sequence, size in sizes.items()}
        before = self.num_cells
        # freed first: there may not be enough memory for both
        self._free()
        try:
            self._open(num_cells)
        except ModelMemoryError:
            self._reopen(before)
            self._restore(states)
            raise
        self._restore(states)

    def _reopen(self, num_cells: int) -> None:
        try:
            self._open(num_cells)
        except ModelMemoryError as error:
            raise BackendError("llama.cpp: no memory for the KV cache any more; free some memory and retry") from error

    def _state(self, sequence: int, size: int) -> Any:
        state = ctypes.create_string_buffer(size)
        if self._api.llama_state_seq_get_data(self._handle, _bytes(state), size, sequence) != size:
            raise BackendError("llama.cpp: the KV cache cannot be copied; set context_length")
        return state

    def _restore(self, states: dict[int, Any]) -> None:
        for sequence, state in states.items():
            if not self._api.llama_state_seq_set_data(self._handle, _bytes(state), len(state), sequence):
                self._api.llama_memory_clear(self._memory, False)
                raise BackendError("llama.cpp: the KV cache cannot be copied; set context_length")

    def _check_room(self, num_cells: int, advice: str, *, copied: int = 0) -> None:
        """Checks the memory for a context, less that of the open one, and for a copy of `copied` bytes."""
        model = self._model

        def estimate(cells: int) -> MemoryEstimate:
            return estimate_context(
                model.sizes,
                self._budget,
                cells,
                gpu_share=model.gpu_share,
                flash=self._flash,
                has_cache=model.has_cache,
            )

        needed = estimate(num_cells) + MemoryEstimate(host=Counter({PROMPTS: copied}))
        if self._handle:
            needed -= estimate(self.num_cells)
        what = f"a context of {num_cells} tokens for {model.path.name}"
        check_fits(what, needed, advice, mapped=model.mapped_bytes)

    def decode(self, *, causal: bool) -> int:
        """Runs the batch; returns 0 or `NO_CELLS`.

        Raises:
            BackendError: llama.cpp failed. The content of the batch's sequences is undefined.
        """
        self._check_open()
        # each call logs a line through Python
        if causal != self._is_causal:
            self._api.llama_set_causal_attn(self._handle, causal)
            self._is_causal = causal
        status = int(self._api.llama_decode(self._handle, self.batch.native))
        if status not in (0, NO_CELLS):
            raise decode_error(status)
        return status

    def logits(self, num_rows: int) -> Floats:
        """Shape (num_rows, V): llama.cpp's own memory, valid until the next decode; may be overwritten."""
        address = ctypes.addressof(self._api.llama_get_logits(self._handle).contents)
        # an array over foreign memory costs as much as the reduction of a row; the memory rarely moves
        if address != self._logits_address or num_rows > len(self._logits):
            size = num_rows * self._vocab_size
            memory = (ctypes.c_float * size).from_address(address)
            self._logits = np.ctypeslib.as_array(memory).reshape(num_rows, self._vocab_size)
            self._logits_address = address
        return self._logits[:num_rows]

    def crop(self, sequence: int, length: int) -> None:
        """Keeps the first `length` positions of a sequence."""
        self._check_open()
        if not self._api.llama_memory_seq_rm(self._memory, sequence, length, -1):
            raise BackendError("llama.cpp: the KV cache cannot be cropped; use another model")

    def share(self, source: int, target: int) -> None:
        """Makes an empty sequence share the cells of another one."""
        self._check_open()
        self._api.llama_memory_seq_cp(self._memory, source, target, 0, -1)

    def set_threads(self, threads: int) -> None:
        """Sets the CPU threads of the following decodes."""
        self._check_open()
        self._threads = threads
        self._api.llama_set_n_threads(self._handle, threads, threads)

    def _check_open(self) -> None:
        if self._is_closed:
            raise BackendError("the model is closed; open it again")
        if self._handle is None:  # a resize failed, and so did the return to the old size
            self._reopen(self.num_cells)

    def close(self) -> None:
        """Frees the context. Idempotent."""
        self._is_closed = True
        self._free()

    def _free(self) -> None:
        if self._handle is not None:
            self._api.llama_free(self._handle)
            self._handle = None


def _bytes(state: Any) -> Any:
    return ctypes.cast(state, ctypes.POINTER(ctypes.c_uint8))
