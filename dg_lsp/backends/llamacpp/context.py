"""One llama.cpp context: decode, read logits, copy and crop sequences. Knows nothing of slots or canvases.

It begins small. Weights stay where they are when it grows, and so does what its sequences hold.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dg_lsp.backends.llamacpp.errors import context_error, decode_error
from dg_lsp.backends.llamacpp.library import library
from dg_lsp.backends.llamacpp.memory_estimate import (
    ADVICE,
    ContextBudget,
    MemoryNeed,
    MemoryNeeds,
    check_fits,
    context_need,
)
from dg_lsp.backends.llamacpp.model import LlamaModel
from dg_lsp.canvas.layout import Flags, TokenIds
from dg_lsp.diffusion.denoiser import Floats
from dg_lsp.errors import BackendError, ModelError, ModelMemoryError, ModelUnsupportedError


class Batch:
    """Filled with a few slice assignments; writing it token by token through ctypes costs more than a small step.

    Every token belongs to exactly one sequence, so the table of sequence lists is written once.
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

    def put_tokens(
        self,
        ids: TokenIds,
        positions: TokenIds,
        sequences: TokenIds | int,
        outputs: Flags | npt.NDArray[np.int8] | int,
    ) -> None:
        """All of shape (N,), N at most `capacity`, or one number for all; `outputs` says whose logits are wanted."""
        count = len(ids)
        self._tokens[:count] = ids
        self.native.token, self.native.embd = self._token_pointer, None
        self._put_places(count, positions, sequences, outputs)

    def put_rows(self, rows: Floats, positions: TokenIds, sequences: TokenIds) -> None:
        """`rows` has shape (N, embedding length); logits are wanted of all of them."""
        if self._rows is None:
            self._rows = np.zeros((self.capacity, self._embedding_length), dtype=np.float32)
        count = len(rows)
        # Copied into memory that lives as long as the batch: a temporary's address would dangle.
        self._rows[:count] = rows
        self.native.token, self.native.embd = None, _pointer(self._rows, ctypes.c_float)
        self._put_places(count, positions, sequences, 1)

    def _put_places(
        self, count: int, positions: TokenIds, sequences: TokenIds | int, outputs: Flags | npt.NDArray[np.int8] | int
    ) -> None:
        self._positions[:count] = positions
        self._sequences[:count] = sequences
        self._outputs[:count] = outputs
        self.native.n_tokens = count


def _pointer(array: npt.NDArray[Any], kind: Any) -> Any:
    return array.ctypes.data_as(ctypes.POINTER(kind))


NO_CELLS = 1
"""`llama_decode`'s status when the KV cache has no room; nothing was changed then."""


class LlamaContext:
    """Owns a native context and its batch. One thread only.

    Callers check sizes before they call: a batch larger than the context was made for aborts the process.
    """

    def __init__(self, model: LlamaModel, budget: ContextBudget, *, flash_attention: bool) -> None:
        """With the cells that the budget begins with.

        Raises:
            ModelMemoryError: there is no memory for it.
            ModelUnsupportedError: the model cannot do this.
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
        self._borrowed = model.borrow()
        try:
            self._open(budget.first_length)
        except ModelError:
            self.close()
            raise

    def _open(self, num_cells: int) -> None:
        api, budget = self._api, self._budget
        params = api.llama_context_default_params()
        params.n_ctx = num_cells
        params.n_batch = params.n_ubatch = min(budget.batch_tokens, num_cells)
        params.n_seq_max = budget.num_sequences
        # The graph is reserved for so many rows of logits; by default for a whole batch of them.
        outputs = max(min(budget.canvas_tokens, num_cells), budget.num_sequences)
        params.n_outputs_max = params.n_outputs_max_per_seq = outputs
        params.n_threads = params.n_threads_batch = self._threads
        params.kv_unified = True
        params.swa_full = True  # a cropped prefix must still be there
        params.no_perf = True
        params.attention_type = api.LLAMA_ATTENTION_TYPE_CAUSAL
        params.flash_attn_type = api.LLAMA_FLASH_ATTN_TYPE_AUTO if self._flash else api.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self._native.log.forget_trouble()
        self._handle = api.llama_init_from_model(self._borrowed, params) or None
        if not self._handle:
            raise context_error(self._native.log.trouble)
        self._memory = api.llama_get_memory(self._handle)
        self._is_causal = True
        self._logits: Floats = np.empty((0, 0), dtype=np.float32)
        self._logits_address = 0
        model = self._model
        if bool(self._memory) != model.has_cache or api.llama_pooling_type(self._handle) != api.LLAMA_POOLING_TYPE_NONE:
            raise ModelUnsupportedError(
                f"{model.path} keeps no prompt in memory or only makes embeddings; use a causal language model"
            )
        self.num_cells = int(api.llama_n_ctx(self._handle))
        capacity = int(api.llama_n_ubatch(self._handle))
        if self.batch is None or self.batch.capacity != capacity:
            self.batch = Batch(api, capacity, model.embedding_length)

    def grow(self, num_cells: int, sequences: Sequence[int] = ()) -> None:
        """Has so many cells from now on; what these sequences hold stays, all others are empty.

        Raises:
            ModelMemoryError: there is no memory for it, and nothing has changed.
            BackendError: what the sequences held is lost: all of them are empty.
        """
        self._check_open()
        sizes = {sequence: int(self._api.llama_state_seq_get_size(self._handle, sequence)) for sequence in sequences}
        self._check_room(num_cells, "shorten the prompt or free memory", kept=sum(sizes.values()))
        states = {sequence: self._state(sequence, size) for sequence, size in sizes.items()}
        before = self.num_cells
        # Given back first: both together may be more than there is.
        self._free()
        try:
            self._open(num_cells)
        except ModelMemoryError:
            self._open_again(before)
            self._restore(states)
            raise
        self._restore(states)

    def _open_again(self, num_cells: int) -> None:
        try:
            self._open(num_cells)
        except ModelMemoryError as error:
            raise BackendError("llama.cpp: the KV cache's memory is gone; free some and ask again") from error

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

    def _check_room(self, num_cells: int, advice: str, *, kept: int = 0) -> None:
        """Of an open context only what is more is asked for, and room for a copy of `kept` bytes."""
        model = self._model

        def need(cells: int) -> MemoryNeeds:
            return context_need(
                model.sizes,
                self._budget,
                cells,
                gpu_share=model.gpu_share,
                flash=self._flash,
                has_cache=model.has_cache,
            )

        needs = need(num_cells) - need(self.num_cells) if self._handle else need(num_cells)
        what = f"a context of {num_cells} tokens for {model.path.name}"
        check_fits(what, needs + MemoryNeeds(host=MemoryNeed(cache=kept)), advice, mapped=model.mapped_bytes)

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
        self._threads = threads
        self._api.llama_set_n_threads(self._handle, threads, threads)

    def _check_open(self) -> None:
        if self._is_closed:
            raise BackendError("the model is closed; open it again")
        if self._handle is None:  # it could not grow, and not be what it was either
            self._open_again(self.num_cells)

    @property
    def native(self) -> Any:
        """For samplers that run on the device."""
        return self._handle

    def close(self) -> None:
        """Frees the context. Harmless when repeated."""
        if not self._is_closed:
            self._is_closed = True
            self._free()
            self._model.give_back()

    def _free(self) -> None:
        if self._handle is not None:
            self._api.llama_free(self._handle)
            self._handle = None


def _bytes(state: Any) -> Any:
    return ctypes.cast(state, ctypes.POINTER(ctypes.c_uint8))


def grow(context: LlamaContext, budget: ContextBudget, num_missing: int, sequences: Sequence[int] = ()) -> None:
    """So many more cells at least; none where the budget allows no more. What these sequences hold stays.

    Raises:
        ModelMemoryError: there is no memory for them; nothing has changed.
        BackendError: what the sequences held is lost.
    """
    refusal: ModelMemoryError | None = None
    for num_cells in budget.larger(context.num_cells, num_missing):
        try:
            context.grow(num_cells, sequences)
        except ModelMemoryError as error:
            refusal = error
        else:
            return
    if refusal is not None:
        raise refusal
