"""One llama.cpp context. It starts small and grows; the sequences keep their content then."""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dg_lsp.backends.llamacpp import memory_estimate
from dg_lsp.backends.llamacpp.library import context_error, decode_error, library
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
        self._tokens, self._positions, self._sequences = (np.zeros(capacity, dtype=np.int32) for _ in range(3))
        self._counts = np.ones(capacity, dtype=np.int32)
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

    def put(
        self, content: TokenIds | Floats, positions: TokenIds, sequences: TokenIds | int, outputs: Outputs = 1
    ) -> None:
        """Fills the batch with N tokens, at most `capacity`; `outputs` are those that need logits.

        `content` has token ids of shape (N,), or embeddings of shape (N, embedding length).
        """
        count = len(content)
        if content.ndim == 1:
            self._tokens[:count] = content
            self.native.token, self.native.embd = self._token_pointer, None
        else:
            if self._rows is None:
                self._rows = np.zeros((self.capacity, self._embedding_length), dtype=np.float32)
            # copied into memory that lives as long as the batch: the address of a temporary would dangle
            self._rows[:count] = content
            self.native.token, self.native.embd = None, _pointer(self._rows, ctypes.c_float)
        self._positions[:count] = positions
        self._sequences[:count] = sequences
        self._outputs[:count] = outputs
        self.native.n_tokens = count


def _pointer(array: npt.NDArray[Any], kind: Any) -> Any:
    return array.ctypes.data_as(ctypes.POINTER(kind))


class LlamaContext:
    """Owns a native context and its batch. One thread only.

    Callers check sizes first: a batch that is larger than the context allows aborts the process.
    """

    def __init__(self, model: LlamaModel, budget: memory_estimate.ContextBudget, *, flash_attention: bool) -> None:
        """Starts with the budget's `first_length`. Raises `ModelMemoryError` or `ModelUnsupportedError`."""
        self._native = library()
        self._api = self._native.api
        self._model = model
        self._budget = budget
        self._flash = flash_attention
        self._threads = 1
        self.sliding_window = model.sliding_window  # see `LlamaModel`
        self._handle: Any = None
        self.num_cells = 0
        self.batch: Any = None
        self._check_room(budget.first_length, memory_estimate.ADVICE)
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
        self._is_causal = True
        self._logits: Floats = np.empty((0, 0), dtype=np.float32)
        self._logits_address = 0
        if bool(self._memory) != model.has_cache or api.llama_pooling_type(self._handle) != api.LLAMA_POOLING_TYPE_NONE:
            raise ModelUnsupportedError(
                f"{model.path} has no KV cache or only computes embeddings; use a causal language model"
            )
        self.num_cells = int(api.llama_n_ctx(self._handle))
        capacity = int(api.llama_n_ubatch(self._handle))
        if self.batch is None or self.batch.capacity != capacity:  # a full one may be waiting for a new context
            self.batch = Batch(api, capacity, model.embedding_length)

    @property
    def gpu_estimate(self) -> int:
        """Bytes of this context on the GPUs, estimated."""
        return self._estimate(self.num_cells).gpu

    def _estimate(self, cells: int) -> memory_estimate.MemoryEstimate:
        model = self._model
        return memory_estimate.estimate_context(
            model.sizes, self._budget, cells, gpu_share=model.gpu_share, flash=self._flash
        )

    def grow(self, num_missing: int, sequences: Sequence[int] = ()) -> None:
        """Adds at least this many cells if the budget allows. The given sequences keep their content, others are lost.

        After a `ModelMemoryError` nothing has changed, after a `BackendError` all sequences are empty.
        """
        limit = self._budget.context_length
        needed = min(memory_estimate.padded(self.num_cells + num_missing), limit)
        doubled = min(max(needed, 2 * self.num_cells), limit)
        if needed <= self.num_cells:
            return
        try:
            self._resize(doubled, sequences)
        except ModelMemoryError:
            if needed == doubled:
                raise
            self._resize(needed, sequences)

    def _resize(self, num_cells: int, sequences: Sequence[int]) -> None:
        self._check_open()
        sizes = {sequence: int(self._api.llama_state_seq_get_size(self._handle, sequence)) for sequence in sequences}
        self._check_room(num_cells, "shorten the prompt or free memory", copied=sum(sizes.values()))
        states = {sequence: np.empty(size, dtype=np.uint8) for sequence, size in sizes.items()}
        for sequence, state in states.items():
            pointer = _pointer(state, ctypes.c_uint8)
            if self._api.llama_state_seq_get_data(self._handle, pointer, len(state), sequence) != len(state):
                raise BackendError(_NOT_COPIED)
        before = self.num_cells
        # freed first: there may not be enough memory for both
        self.close()
        try:
            self._open(num_cells)
        except ModelMemoryError:
            self._reopen(before)
            raise
        finally:
            if self._handle:
                self._restore(states)

    def _reopen(self, num_cells: int) -> None:
        try:
            self._open(num_cells)
        except ModelMemoryError as error:
            raise BackendError("llama.cpp: no memory for the KV cache any more; free some memory and retry") from error

    def _restore(self, states: dict[int, npt.NDArray[np.uint8]]) -> None:
        for sequence, state in states.items():
            pointer = _pointer(state, ctypes.c_uint8)
            if not self._api.llama_state_seq_set_data(self._handle, pointer, len(state), sequence):
                self._api.llama_memory_clear(self._memory, False)
                raise BackendError(_NOT_COPIED)

    def _check_room(self, num_cells: int, advice: str, *, copied: int = 0) -> None:
        """Checks the memory for a context, less that of the open one, and for a copy of `copied` bytes."""
        model = self._model
        new = self._estimate(num_cells)
        old = self._estimate(self.num_cells) if self._handle else memory_estimate.MemoryEstimate()
        needed = memory_estimate.MemoryEstimate(max(0, new.gpu - old.gpu), max(0, new.host - old.host) + copied)
        what = f"a context of {num_cells} tokens for {model.path.name}"
        memory_estimate.check_fits(what, needed, advice, mapped=model.mapped_bytes, placement=model.placement)

    def decode(self, *, causal: bool) -> None:
        """Runs the batch. After a `BackendError`, the batch's sequences are undefined."""
        self._check_open()
        # each call logs a line through Python
        if causal != self._is_causal:
            self._api.llama_set_causal_attn(self._handle, causal)
            self._is_causal = causal
        if status := int(self._api.llama_decode(self._handle, self.batch.native)):
            raise decode_error(status)

    @property
    def native(self) -> Any:
        """The native context, until it grows."""
        return self._handle

    @property
    def _memory(self) -> Any:
        self._check_open()
        return self._api.llama_get_memory(self._handle)

    def logits(self, num_rows: int) -> Floats:
        """Shape (num_rows, V): llama.cpp's own memory, valid until the next decode; may be overwritten."""
        address = ctypes.addressof(self._api.llama_get_logits(self._handle).contents)
        # an array over foreign memory costs as much as the reduction of a row; the memory rarely moves
        if address != self._logits_address or num_rows > len(self._logits):
            memory = (ctypes.c_float * (num_rows * self._model.vocab_size)).from_address(address)
            self._logits = np.ctypeslib.as_array(memory).reshape(num_rows, self._model.vocab_size)
            self._logits_address = address
        return self._logits[:num_rows]

    def crop(self, sequence: int, length: int) -> None:
        """Keeps the first `length` positions of a sequence; does nothing without a cache."""
        if not self._api.llama_memory_seq_rm(self._memory, sequence, length, -1):
            raise BackendError("llama.cpp: the KV cache cannot be cropped; use another model")

    def share(self, source: int, target: int) -> None:
        """Makes an empty sequence share the cells of another one."""
        self._api.llama_memory_seq_cp(self._memory, source, target, 0, -1)

    @property
    def can_shift(self) -> bool:
        """Whether `park` may move positions; otherwise it would abort the process."""
        return bool(self._api.llama_memory_can_shift(self._memory))

    def park(self, sequence: int, start: int, shift: int) -> None:
        """Takes the cells from position `start` on out of a sequence, moved by `shift`, until `unpark`.

        llama.cpp decodes only behind a sequence's last cell. The next decode rotates the keys of moved cells; the cache
        must not be resized before it.
        """
        api = self._api
        memory = self._memory
        spare = self._budget.num_sequences - 1
        api.llama_memory_seq_cp(memory, sequence, spare, start, -1)
        api.llama_memory_seq_rm(memory, sequence, start, -1)
        api.llama_memory_seq_add(memory, spare, start, -1, shift)

    def unpark(self, sequence: int) -> None:
        """Gives a sequence its parked cells back."""
        spare = self._budget.num_sequences - 1
        self._api.llama_memory_seq_cp(self._memory, spare, sequence, -1, -1)
        self._api.llama_memory_seq_rm(self._memory, spare, -1, -1)

    def has_window(self, sequence: int, length: int) -> bool:
        """Whether the cells that position `length` attends to are there.

        Of layers with a sliding window, llama.cpp reuses cells that the sequence's end does not see any more.
        """
        if not self.sliding_window:
            return True
        first = int(self._api.llama_memory_seq_pos_min(self._memory, sequence))
        return first <= max(0, length - self.sliding_window + 1)

    def set_threads(self, threads: int) -> None:
        """Sets the CPU threads of the following decodes."""
        self._check_open()
        self._threads = threads
        self._api.llama_set_n_threads(self._handle, threads, threads)

    def _check_open(self) -> None:
        if self._handle is None:  # a resize failed, and so did the return to the old size; or the model is closed
            self._reopen(self.num_cells)

    def close(self) -> None:
        """Frees the context. Idempotent."""
        if self._handle is not None:
            self._api.llama_free(self._handle)
            self._handle = None


_NOT_COPIED = "llama.cpp: the KV cache cannot be copied; set context_length"
