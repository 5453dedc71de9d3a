"""One llama.cpp context, which starts small and grows, and the prompts in its KV cache, by slot."""

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dg_lsp.backends.llamacpp import memory_estimate
from dg_lsp.backends.llamacpp.library import context_error, decode_error, library
from dg_lsp.backends.llamacpp.model import LlamaModel
from dg_lsp.canvas.layout import NOTHING, Flags, TokenIds, common_prefix_length, concat
from dg_lsp.canvas.spec import FimTokens
from dg_lsp.diffusion.denoiser import WHOLE_PROMPT, Floats
from dg_lsp.errors import BackendError, ModelMemoryError, ModelUnsupportedError

Outputs = Flags | npt.NDArray[np.int8] | int
"""Which tokens of a batch need logits, shape (N,), or one value for all of them."""
State = npt.NDArray[np.uint8]
"""The cells of a sequence, copied out of the context, and perhaps more bytes behind them; shape (bytes,)."""
_SPARE_BYTES = 1 << 20
"""Of a copy: prompts grow while the user types, and the pages of new memory take longer than the copy."""
_NOT_COPIED = "llama.cpp: the KV cache cannot be copied; set context_length"


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
    """Owns a native context and its batch; the sequences keep their content when it grows. One thread only.

    Callers check sizes first: a batch that is larger than the context allows aborts the process.
    """

    def __init__(self, model: LlamaModel, budget: memory_estimate.ContextBudget, *, flash_attention: bool) -> None:
        """Starts with the budget's `first_length`; the model closes it. Raises `ModelMemoryError` or `ModelError`."""
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
        model.before_close.callback(self.close)
        self._open(budget.first_length)

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
        states: dict[int, State] = {}
        try:
            for sequence in sequences:
                states[sequence] = self.take_out(sequence)
            self._resize(doubled, needed)
        finally:
            for sequence, state in states.items():
                self.put_back(sequence, state)

    def _resize(self, wanted: int, least: int) -> None:
        """Makes an empty context of the wanted size, or of the least one if there is no memory for the wanted one.

        After a `ModelMemoryError` the context has its old size.
        """
        try:
            self._check_room(wanted, "shorten the prompt or free memory")
            self.close()  # first, because there may not be enough memory for both
            self._open(wanted)
        except ModelMemoryError:
            self._check_open()
            if wanted == least:
                raise
            self._resize(least, least)

    def state_size(self, sequence: int) -> int:
        """Bytes of a sequence's cells."""
        self._check_open()
        return int(self._api.llama_state_seq_get_size(self._handle, sequence))

    def take_out(self, sequence: int, buffer: State | None = None) -> State:
        """Copies a sequence's cells out of the context, where it is empty then; into this buffer if they fit.

        After a `ModelMemoryError` or a `BackendError` nothing has changed.
        """
        size = self.state_size(sequence)
        if buffer is None or len(buffer) < size:
            needed = memory_estimate.MemoryEstimate(host=size)
            memory_estimate.check_fits("a prompt beside the cache", needed, memory_estimate.ADVICE)
            buffer = np.empty(size + _SPARE_BYTES, dtype=np.uint8)
        pointer = _pointer(buffer, ctypes.c_uint8)
        if self._api.llama_state_seq_get_data(self._handle, pointer, len(buffer), sequence) != size:
            raise BackendError(_NOT_COPIED)
        self.crop(sequence, 0)
        return buffer

    def put_back(self, sequence: int, state: State) -> None:
        """Copies cells into an empty sequence. After a `BackendError` all sequences are empty."""
        memory = self._memory
        pointer = _pointer(state, ctypes.c_uint8)
        if not self._api.llama_state_seq_set_data(self._handle, pointer, len(state), sequence):
            self._api.llama_memory_clear(memory, False)
            raise BackendError(_NOT_COPIED)

    def _check_room(self, num_cells: int, advice: str) -> None:
        """Checks the memory for a context, less that of the open one."""
        model = self._model
        new = self._estimate(num_cells)
        old = self._estimate(self.num_cells) if self._handle else memory_estimate.MemoryEstimate()
        needed = memory_estimate.MemoryEstimate(max(0, new.gpu - old.gpu), max(0, new.host - old.host))
        what = f"a context of {num_cells} tokens for {model.path.name}"
        memory_estimate.check_fits(what, needed, advice, gpus=model.used_gpus, mapped=model.mapped_bytes)

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

    def logits(self, outputs: Flags) -> Floats:
        """Of N tokens of the last batch those of `outputs`, shape (N,): shape (R, V), until the next decode.

        They may be overwritten. With a cache they are llama.cpp's own memory; without one, llama.cpp computes the
        logits of all tokens.
        """
        num_rows = int(outputs.sum()) if self._model.has_cache else len(outputs)
        address = ctypes.addressof(self._api.llama_get_logits(self._handle).contents)
        # an array over foreign memory costs as much as the reduction of a row; the memory rarely moves
        if address != self._logits_address or num_rows > len(self._logits):
            memory = (ctypes.c_float * (num_rows * self._model.vocab_size)).from_address(address)
            self._logits = np.ctypeslib.as_array(memory).reshape(num_rows, self._model.vocab_size)
            self._logits_address = address
        return self._logits[:num_rows] if self._model.has_cache else self._logits[:num_rows][outputs]

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
        if self._handle is not None:
            return
        try:
            self._open(self.num_cells)  # a resize failed; if the model is closed, this raises
        except ModelMemoryError as error:
            raise BackendError("llama.cpp: no memory for the KV cache any more; free some memory and retry") from error

    def close(self) -> None:
        """Frees the native context. Idempotent."""
        if self._handle is not None:
            self._api.llama_free(self._handle)
            self._handle = None


# the prompts

MIN_MOVED = 16  # shorter suffixes are decoded again, which costs one short pass
MAX_EDITS = 64
"""Edits after which a suffix is decoded again as a whole. After 30 to 100, 1 % of the lines get worse (docs/log.md)."""
MAX_COPIED = 1 << 26
"""Bytes of a prompt that is copied out of the context: a longer conversation would take too long at each key."""
REFRESH_TOKENS = 16  # of one pass of a refresh: a typed character waits for one such pass at most


@dataclass(frozen=True, slots=True)
class Drift:
    """Cells of a slot that were computed for an earlier prefix, and moved since."""

    start: int = 0  # first such position; all after it depend on them
    num_edits: int = 0  # edits that the oldest cells have not seen; 0: all cells are exact
    num_refreshed: int = 0  # cells after `start` that a refresh has decoded again; an edit does not make it start again
    num_recent: int = 0  # edits since the refresh began


EXACT = Drift()


@dataclass(slots=True, eq=False)
class CachedPrompt:
    """What a slot holds."""

    ids: TokenIds
    drift: Drift = EXACT
    state: State | None = None  # its cells, if they are not in the context


class KvCache:
    """Prompts by slot; slot N is sequence N of the context. The least recently used slots are evicted first.

    A processor attends to the cells of all sequences in each pass. Where it computes, one slot at a time has its cells
    in the context, and those of the others are copied out, except for long conversations.

    Where the suffix of a prompt follows its prefix, an edit of the prefix moves the suffix's cells, so that a typed
    character does not decode the suffix again. Their ids are those of the prompt; their states are an approximation.
    """

    def __init__(
        self,
        context: LlamaContext,
        prefill_tokens: int,
        movable: FimTokens | None = None,
        block_length: int = 0,
        *,
        is_alone: bool = False,
    ) -> None:
        """Prompts are decoded in batches of at most `prefill_tokens`. The suffix of `movable` prompts is moved.

        With `block_length`, prompts are whole blocks; attention is full inside a block and causal between blocks. With
        `is_alone`, one slot at a time has its cells in the context.
        """
        self._context = context
        self._is_alone = is_alone
        self._prefill_tokens = block_length or prefill_tokens
        self._block_length = block_length
        # no token has the number -1
        self._suffix_id, self._middle_id = (movable.suffix_id, movable.middle_id) if movable else (-1, -1)
        self._prompts: dict[int, CachedPrompt] = {}
        """Those that are not empty, the least recently used one first."""
        self._buffer: State | None = None
        """Memory for the next copy: that of the last prompt that came back."""

    @property
    def num_used(self) -> int:
        """Tokens of all prompts. For any thread."""
        return sum(len(prompt.ids) for prompt in list(self._prompts.values()))

    def ids(self, slot: int) -> TokenIds:
        """The slot's prompt; empty if it was evicted."""
        return self._prompts[slot].ids if slot in self._prompts else NOTHING

    def set_ids(self, slot: int, ids: TokenIds) -> None:
        """Records the slot's prompt, and that it was used last."""
        prompt = self._prompts.pop(slot, CachedPrompt(ids))
        if len(ids):
            prompt.ids = ids
            self._prompts[slot] = prompt

    def prefill(self, slot: int, ids: TokenIds, most: int = WHOLE_PROMPT) -> int:
        """Gives the slot this prompt, or decodes `most` tokens of it, up to a whole block; returns how many it decoded.

        After a `ModelMemoryError` the slot keeps the common prefix, after a `BackendError` it is empty.
        """
        if not len(ids):
            self.clear(slot)
            return 0
        self._activate(slot)
        if not self._context.has_window(slot, common_prefix_length(self.ids(slot), ids)):
            self.clear(slot)
        num_decoded = self._move_suffix(slot, ids, most)
        if num_decoded >= most:
            return num_decoded
        kept = common_prefix_length(self.ids(slot), ids)
        block = self._block_length or 1
        kept -= kept % block
        self.crop(slot, kept)
        ids = ids[: kept + math.ceil((most - num_decoded) / block) * block]
        if kept < len(ids):
            self.make_room(slot, len(ids) - kept)
            self._append(slot, ids[kept:])
        return num_decoded + len(ids) - kept

    def refresh(self, slot: int) -> int:
        """See `Denoiser.refresh`."""
        if not self._drift(slot).num_edits:
            return 0
        self._activate(slot)
        drift = self._drift(slot)  # exact where the prompt was lost
        if not drift.num_edits or not self._context.has_window(slot, drift.start):
            return 0
        ids = self.ids(slot)
        end = drift.start + _find(ids[drift.start :], self._middle_id)
        start = drift.start + drift.num_refreshed
        if start >= end:  # the suffix has become shorter
            start = drift.start
        stop = min(start + REFRESH_TOKENS, end)
        self.crop(slot, end)  # what follows the suffix has read the older states
        self._splice(slot, start, stop, ids[start:stop])
        if stop < end:
            drift = replace(drift, num_refreshed=stop - drift.start)
        else:
            drift = Drift(drift.start, drift.num_recent) if drift.num_recent else EXACT
        self._prompts[slot].drift = drift
        return stop - start

    def crop(self, slot: int, length: int) -> None:
        """Keeps the first `length` tokens of a slot whose cells are in the context."""
        ids = self.ids(slot)
        if length < len(ids):
            self._context.crop(slot, length)
        self.set_ids(slot, ids[:length])
        drift = self._drift(slot)
        if drift.num_edits and drift.start >= length:
            self._prompts[slot].drift = EXACT

    def make_room(self, slot: int, num_tokens: int) -> None:
        """Makes cells for more tokens in the slot: the context grows, or other slots are evicted.

        After a `ModelMemoryError` nothing has changed, after a `BackendError` all slots are empty.
        """
        num_known = len(self.ids(slot))
        self._activate(slot)
        if len(self.ids(slot)) < num_known:
            raise BackendError(_NOT_COPIED)
        self._free_cells(slot, num_tokens)

    def clear(self, slot: int) -> None:
        """Empties the slot."""
        self._context.crop(slot, 0)
        self._prompts.pop(slot, None)

    def _drift(self, slot: int) -> Drift:
        return self._prompts[slot].drift if slot in self._prompts else EXACT

    def _move_suffix(self, slot: int, ids: TokenIds, most: int) -> int:
        """Changes the slot's prefix to the prompt's, if it is worthwhile to keep the suffix; returns decoded tokens.

        Of a longer change the first `most` tokens are decoded, and stand between the common prefix and the suffix.
        """
        old = self.ids(slot)
        drift = self._drift(slot)
        at_old = _find(old, self._suffix_id) + 1
        at_new = _find(ids, self._suffix_id) + 1
        kept = common_prefix_length(old, ids)
        has_suffixes = at_old <= len(old) and at_new <= len(ids)
        if not has_suffixes or kept >= at_old or drift.num_edits >= MAX_EDITS:
            return 0
        # the middle sentinel is always decoded: the fill is predicted from it
        length = min(common_prefix_length(old[at_old:], ids[at_new:]), _find(ids[at_new:], self._middle_id))
        is_wide = 0 < self._context.sliding_window <= length  # its first cells could be reused while it is parked
        if is_wide or length < max(MIN_MOVED, at_new - kept):
            return 0
        self.crop(slot, at_old + length)
        if at_new - kept > most:
            self._splice(slot, kept, at_old - 1, ids[kept : kept + most])  # the suffix sentinel moves, too
            self._prompts[slot].drift = replace(drift, start=kept + most, num_edits=max(1, drift.num_edits))
            return most
        self._splice(slot, kept, at_old, ids[kept:at_new])
        num_recent = drift.num_recent + (drift.num_refreshed > 0)
        self._prompts[slot].drift = Drift(at_new, drift.num_edits + 1, drift.num_refreshed, num_recent)
        return at_new - kept

    def _splice(self, slot: int, start: int, stop: int, ids: TokenIds) -> None:
        """Decodes at least one id in place of the positions from `start` to `stop`, and moves the cells after them."""
        old = self.ids(slot)
        shift = start + len(ids) - stop
        self.make_room(slot, max(0, shift))
        self._context.park(slot, stop, shift)
        self.crop(slot, start)
        self._append(slot, ids)
        self._context.unpark(slot)
        self.set_ids(slot, concat(old[:start], ids, old[stop:]))

    def _append(self, slot: int, ids: TokenIds) -> None:
        """Decodes ids after those of the slot; there is room for them. After a `BackendError` the slot is empty."""
        old = self.ids(slot)
        step = self._prefill_tokens
        try:
            for start in range(0, len(ids), step):
                part = ids[start : start + step]
                positions = np.arange(len(part), dtype=np.int32) + np.int32(len(old) + start)
                self._context.batch.put(part, positions, slot, 0)
                self._context.decode(causal=not self._block_length)
        except BackendError:
            self._context.unpark(slot)
            self.clear(slot)
            raise
        self.set_ids(slot, concat(old, ids))

    def _in_context(self) -> list[int]:
        """The slots whose cells are in the context, the least recently used first."""
        return [slot for slot, prompt in self._prompts.items() if prompt.state is None]

    def _activate(self, slot: int) -> None:
        """Puts the slot's cells into the context, and where it has to be alone those of the others out of it.

        Where they cannot be copied, prompts are lost.
        """
        for other in [other for other in self._in_context() if self._is_alone and other != slot]:
            size = self._context.state_size(other)
            if size <= MAX_COPIED:
                if self._buffer is not None and len(self._buffer) < size:
                    self._buffer = None  # freed before there is a larger one
                try:
                    self._prompts[other].state = self._context.take_out(other, self._buffer)
                    self._buffer = None
                except (BackendError, ModelMemoryError):
                    self.clear(other)
        prompt = self._prompts.get(slot)
        if prompt is not None and prompt.state is not None:
            try:
                self._free_cells(slot, len(prompt.ids))
                self._context.put_back(slot, prompt.state)
                self._buffer, prompt.state = prompt.state, None
            except ModelMemoryError:
                self.clear(slot)
            except BackendError:
                for lost in (slot, *self._in_context()):
                    self.clear(lost)

    def _free_cells(self, slot: int, num_tokens: int) -> None:
        """Makes the context have free cells for tokens of a slot, beside those of the slot that it has already."""
        in_context = self._in_context()
        num_needed = num_tokens + sum(len(self.ids(used)) for used in in_context)
        try:
            self._context.grow(num_needed - self._context.num_cells, in_context)
        except ModelMemoryError:
            num_own = len(self.ids(slot)) if slot in in_context else 0
            if num_own + num_tokens > self._context.num_cells:
                raise
        except BackendError:
            self._prompts.clear()
            raise
        for used in in_context:
            if used != slot and num_needed > self._context.num_cells:
                num_needed -= len(self.ids(used))
                self.clear(used)


def _find(ids: TokenIds, token: int | None) -> int:
    """The position of the first such token; the number of ids without one."""
    places = np.flatnonzero(ids == token)
    return int(places[0]) if len(places) else len(ids)
