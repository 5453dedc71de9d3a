"""The cached denoiser for weights whose logits at a position say what comes after it (Dream, RND1).

What stands at a canvas's first position is said at the prompt's last token. That one is therefore kept out of the cache
and goes along with every canvas, which it sees there as in training; the rest of the prompt is encoded causally, which
these models were not trained for: an approximation.
"""

from collections.abc import Sequence

import numpy as np

from dg_lsp.backends.checks import check_temperature, checked_canvases, checked_ids
from dg_lsp.backends.llamacpp.asked import Asked, completed, with_masks
from dg_lsp.backends.llamacpp.budget import MAX_CANVASES
from dg_lsp.backends.llamacpp.denoiser import LlamaDenoiser
from dg_lsp.backends.llamacpp.model import LlamaModel
from dg_lsp.canvas.plan import TokenIds, token_ids
from dg_lsp.canvas.spec import ModelSpec
from dg_lsp.diffusion.denoiser import Prediction
from dg_lsp.errors import BackendError
from dg_lsp.settings import RuntimeSettings

_NOTHING = token_ids([])


class ShiftedDenoiser(LlamaDenoiser):
    """See `LlamaDenoiser`. Of a model that is not shifted the whole prompt is cached."""

    def __init__(self, model: LlamaModel, spec: ModelSpec, settings: RuntimeSettings) -> None:
        super().__init__(model, spec, settings)
        self._last: dict[int, TokenIds] = {}
        """The prompts' last tokens by slot, shape (0..1,)."""

    def prefill(self, slot: int, prompt_ids: TokenIds) -> int:
        """See `Denoiser.prefill`; the last token, which every step decodes, is not counted."""
        wanted = checked_ids("prompt", prompt_ids, self.spec.vocab_size)
        num_kept = max(0, len(wanted) - self.spec.is_shifted)
        try:
            num_decoded = super().prefill(slot, wanted[:num_kept])
        except BackendError:
            self._last.pop(slot, None)
            raise
        self._last[slot] = token_ids(wanted[num_kept:])
        return num_decoded

    def predict(
        self,
        slot: int,
        canvases: Sequence[TokenIds],
        temperature: float,
        rng: np.random.Generator,
        lanes: Sequence[int] = (),
    ) -> list[Prediction]:
        """See `Denoiser.predict`."""
        del lanes  # nothing is kept of a canvas
        check_temperature(temperature)
        checked = checked_canvases(
            canvases,
            self.spec.vocab_size,
            max_canvases=MAX_CANVASES,
            max_canvas_tokens=self._budget.canvas_tokens - MAX_CANVASES,
        )
        last = self._last.get(slot, _NOTHING)
        self._check_place(slot, [len(last) + len(canvas) for canvas in checked])
        asked = with_masks(checked, self.spec)
        said = self._answers(slot, asked, (temperature, rng)) if asked else ()
        return completed(checked, said, self.spec)

    def extend(self, slot: int, ids: TokenIds) -> Prediction:
        """See `Denoiser.extend`; what was trained to see both ways does not go on causally.

        Raises:
            BackendError: always.
        """
        del slot, ids
        raise BackendError(f"{self.spec.name} has no causal head; use the plan canvas or race")

    def _answers(
        self, slot: int, canvases: Sequence[TokenIds], sampling: tuple[float, np.random.Generator]
    ) -> list[Prediction]:
        """One pass over canvases that have a mask, each after the slot's prompt."""
        asked = Asked(self._last.get(slot, _NOTHING), canvases, self.spec)
        outputs = asked.outputs

        def put(positions: TokenIds, sequences: TokenIds) -> None:
            self._context.batch.put_tokens(asked.ids, positions, sequences, outputs)

        return asked.predictions(self._step(slot, asked.lengths, outputs, put, sampling))
