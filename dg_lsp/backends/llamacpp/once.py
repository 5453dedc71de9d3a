"""The denoiser that computes a prompt in both directions once, together with the first canvas, and keeps it then.

The first step is exact; the next ones see the prompt as it was when the canvas was still masks. This is the prefix
cache of Fast-dLLM (arXiv 2505.22618), which its authors found to cost LLaDA and Dream almost nothing. A keystroke
computes all of the prompt again, a step no more than its canvases.
"""

from collections.abc import Sequence

import numpy as np

from dg_lsp.backends.checks import check_prompt_length, check_slot, checked_ids
from dg_lsp.backends.llamacpp.asked import Asked
from dg_lsp.backends.llamacpp.model import LlamaModel
from dg_lsp.backends.llamacpp.shifted import ShiftedDenoiser
from dg_lsp.canvas.plan import TokenIds, token_ids
from dg_lsp.canvas.spec import ModelSpec
from dg_lsp.diffusion.denoiser import Prediction
from dg_lsp.errors import BackendError
from dg_lsp.settings import RuntimeSettings

_NOTHING = token_ids([])


class OnceDenoiser(ShiftedDenoiser):
    """See `Denoiser`. Of several canvases the first is the one that the prompt is computed with."""

    def __init__(self, model: LlamaModel, spec: ModelSpec, settings: RuntimeSettings) -> None:
        super().__init__(model, spec, settings)
        self._noted: dict[int, TokenIds] = {}
        """Prompts by slot, computed or not, without the last tokens that go along with the canvases."""

    def prefill(self, slot: int, prompt_ids: TokenIds) -> int:
        """See `Denoiser.prefill`; only notes the prompt, all of which the next step will decode."""
        check_slot(slot, self.num_slots)
        wanted = checked_ids("prompt", prompt_ids, self.spec.vocab_size)
        check_prompt_length(len(wanted), self.prompt_limit)
        super().prefill(slot, _NOTHING)
        num_kept = max(0, len(wanted) - self.spec.is_shifted)
        self._noted[slot], self._last[slot] = token_ids(wanted[:num_kept]), token_ids(wanted[num_kept:])
        return len(wanted)

    def _answers(
        self, slot: int, canvases: Sequence[TokenIds], sampling: tuple[float, np.random.Generator]
    ) -> list[Prediction]:
        if not self._num_missing(slot):
            return super()._answers(slot, canvases, sampling)
        first = self._compute(slot, canvases[0], sampling)
        return [*first, *(super()._answers(slot, canvases[1:], sampling) if len(canvases) > 1 else ())]

    def _compute(self, slot: int, canvas: TokenIds, sampling: tuple[float, np.random.Generator]) -> list[Prediction]:
        """One pass over prompt and canvas, of which the prompt stays."""
        kept = self._noted[slot]
        asked = Asked(np.concatenate([kept, self._last[slot]]), [canvas], self.spec)
        self._make_room(slot, len(asked.ids))
        self._context.batch.put_tokens(asked.ids, np.arange(len(asked.ids), dtype=np.int32), slot, asked.outputs)
        try:
            self._decode(slot, causal=False)
            said = asked.predictions(self._reduced(asked.rows, *sampling))
        except BackendError:
            self._forget(slot)
            raise
        self._context.crop(slot, len(kept))
        self._cache.hold(slot, kept)
        return said

    def _check_place(self, slot: int, lengths: Sequence[int]) -> None:
        longest, *others = sorted(lengths, reverse=True)
        super()._check_place(slot, [self._num_missing(slot) + longest, *others])

    def _num_missing(self, slot: int) -> int:
        """Tokens of the prompt that are not computed: all of it, or none."""
        return len(self._noted.get(slot, _NOTHING)) - len(self._cache.held(slot))
