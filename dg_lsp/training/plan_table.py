"""What every decoder takes on held-out sites, as a model's file carries it under `dg.plan.*`."""

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from dg_lsp.bench.sites import Site
from dg_lsp.canvas.layout import TokenIds
from dg_lsp.canvas.spec import DecoderName, ModelSpec
from dg_lsp.canvas.tokenizer import Tokenizer
from dg_lsp.diffusion.denoiser import Denoiser, Footprint, Prediction
from dg_lsp.engine.decoder_selection import PositionKind
from dg_lsp.engine.engine import Engine
from dg_lsp.engine.request import FillRequest
from dg_lsp.metrics.attempt import has_same_first_line
from dg_lsp.settings import FillSettings

LEAST_HITS = 0.001
"""Of a decoder that was never right: no share of 0 can be weighed."""


class CountingDenoiser:
    """See `Denoiser`. Counts the forward passes of another denoiser by kind."""

    def __init__(self, inner: Denoiser) -> None:
        self._inner = inner
        self.passes: Counter[str] = Counter()

    @property
    def spec(self) -> ModelSpec:
        """The inner denoiser's."""
        return self._inner.spec

    @property
    def num_slots(self) -> int:
        """The inner denoiser's."""
        return self._inner.num_slots

    @property
    def footprint(self) -> Footprint:
        """The inner denoiser's."""
        return self._inner.footprint

    def prefill(self, slot: int, prompt_ids: TokenIds) -> int:
        """See `Denoiser.prefill`."""
        return self._inner.prefill(slot, prompt_ids)

    def predict(
        self,
        slot: int,
        canvases: Sequence[TokenIds],
        temperature: float,
        rng: np.random.Generator,
        lanes: Sequence[int] = (),
    ) -> list[Prediction]:
        """See `Denoiser.predict`."""
        self.passes["canvases"] += 1
        return self._inner.predict(slot, canvases, temperature, rng, lanes)

    def extend(self, slot: int, ids: TokenIds) -> Prediction:
        """See `Denoiser.extend`; several ids are a draft, since the decoder before left the whole prompt cached."""
        self.passes["checks" if len(ids) > 1 else "singles"] += 1
        return self._inner.extend(slot, ids)

    def close(self) -> None:
        """Closes the inner denoiser."""
        self._inner.close()


DECODERS = (
    ("diffusion", DecoderName.DIFFUSION, 1),
    ("diffusion-2", DecoderName.DIFFUSION, 2),
    ("autoregressive", DecoderName.AUTOREGRESSIVE, 1),
    ("speculative", DecoderName.SPECULATIVE, 1),
    ("prompt-lookup", DecoderName.PROMPT_LOOKUP, 1),
)
"""Names in a model's file, decoders and numbers of canvases. Diffusion comes first: see `CountingDenoiser.extend`."""


def plan_table(denoiser: Denoiser, tokenizer: Tokenizer, sites: Iterable[Site]) -> dict[str, str]:
    """`line-end.autoregressive` -> mean passes of one token, over a draft, over canvases, and the share of right lines.

    Only sites whose kind the decoder selection knows count; a whole line is asked for as one.
    """
    counting = CountingDenoiser(denoiser)
    engine = Engine(counting, tokenizer, FillSettings(early_stop_ms=0))
    rows: dict[str, list[tuple[float, ...]]] = {}
    for site in sites:
        if site.kind not in set(PositionKind):
            continue
        for name, decoder, num_canvases in DECODERS:
            counting.passes.clear()
            max_lines = 1 if site.kind == PositionKind.WHOLE_LINE else None
            request = FillRequest(site.snapshot, site.offset, num_canvases, max_lines=max_lines, decoder=decoder)
            result = engine.fill(request, deadline=float("inf"))
            passes = [float(counting.passes[sort]) for sort in ("singles", "checks", "canvases")]
            is_hit = has_same_first_line(result.text, site.want)
            rows.setdefault(f"{site.kind}.{name}", []).append((*passes, float(is_hit)))
    return {name: _row(values) for name, values in rows.items()}


def _row(values: Sequence[tuple[float, ...]]) -> str:
    *passes, hits = np.mean(values, axis=0).tolist()
    return ",".join([*(f"{value:.2f}" for value in passes), f"{max(hits, LEAST_HITS):.3f}"])
