"""The step's best tokens picked on the device, so that a large vocabulary's logits need not leave it.

The probabilities are those of the best `NUM_CANDIDATES` tokens alone: what the others hold is unknown, so confidence
comes out high and entropy low where the model is unsure. Never on by default: on a CPU, numpy over all logits is both
exact and faster at every vocabulary from 8 k to 262 k; on a GPU it has not been measured.
"""

from typing import Any

import numpy as np

from dg_lsp.backends.llamacpp.context import LlamaContext
from dg_lsp.backends.llamacpp.library import library
from dg_lsp.backends.llamacpp.memory_estimate import ContextBudget
from dg_lsp.backends.llamacpp.reduce import Reduced, Reducer
from dg_lsp.canvas.layout import TokenIds
from dg_lsp.canvas.spec import ModelSpec
from dg_lsp.errors import BackendError

NUM_CANDIDATES = 64
_MAX_BANNED = 192


class Candidates:
    """Samplers of a context, or none."""

    def __init__(self, context: LlamaContext, budget: ContextBudget, spec: ModelSpec, *, wanted: bool) -> None:
        banned_ids = spec.banned_ids
        self.is_used = wanted and len(banned_ids) <= _MAX_BANNED < spec.vocab_size - NUM_CANDIDATES
        self._api = library().api
        self._context = context
        self._banned = np.array(banned_ids, dtype=np.int32)
        self._reducer = Reducer(())
        self._samplers: list[Any] = []
        self._num_sequences = budget.num_sequences
        self.attach()

    def reduce(
        self, where: np.ndarray[Any, np.dtype[np.intp]], temperature: float, rng: np.random.Generator
    ) -> Reduced:
        """`where`, shape (N,): the batch's positions whose logits were asked for."""
        ids, logits = zip(*(self._row(int(index)) for index in where), strict=True)
        shortest = min(map(len, ids))
        table: TokenIds = np.stack([row[:shortest] for row in ids])
        reduced = self._reducer.reduce(np.stack([row[:shortest] for row in logits]), temperature, rng)
        rows = np.arange(len(table))
        return Reduced(
            argmax_ids=table[rows, reduced.argmax_ids],
            sampled_ids=table[rows, reduced.sampled_ids],
            confidence=reduced.confidence,
            entropy=reduced.entropy,
        )

    def close(self) -> None:
        """To be called before the context is closed or grows. Harmless when repeated."""
        for sequence, sampler in enumerate(self._samplers):
            self._api.llama_set_sampler(self._context.native, sequence, None)
            self._api.llama_sampler_free(sampler)
        self._samplers.clear()

    def attach(self) -> None:
        """To a context that is new, or has grown."""
        api = self._api
        # Banned tokens are dropped here, so as many more are asked for.
        count = NUM_CANDIDATES + len(self._banned)
        for sequence in range(self._num_sequences if self.is_used and self._context.native else 0):
            chain = api.llama_sampler_chain_init(api.llama_sampler_chain_default_params())
            api.llama_sampler_chain_add(chain, api.llama_sampler_init_top_k(count))
            self._samplers.append(chain)
            if not api.llama_set_sampler(self._context.native, sequence, chain):
                raise BackendError("llama.cpp: this device cannot pick candidates; please report this")

    def _row(self, index: int) -> tuple[TokenIds, np.ndarray[Any, np.dtype[np.float32]]]:
        api, native = self._api, self._context.native
        count = api.llama_get_sampled_candidates_count_ith(native, index)
        if not count or count != api.llama_get_sampled_logits_count_ith(native, index):
            raise BackendError("llama.cpp: the device returned no candidates; please report this")
        ids = np.ctypeslib.as_array(api.llama_get_sampled_candidates_ith(native, index), shape=(count,))
        logits = np.ctypeslib.as_array(api.llama_get_sampled_logits_ith(native, index), shape=(count,))
        allowed = ~np.isin(ids, self._banned)
        # Best first: a tie is broken towards the smaller id, as over the whole vocabulary.
        order = np.lexsort((ids[allowed], -logits[allowed]))[:NUM_CANDIDATES]
        return ids[allowed][order].astype(np.int32), logits[allowed][order].copy()
