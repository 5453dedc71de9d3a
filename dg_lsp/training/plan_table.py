"""What every plan takes on held-out sites, as a model's file carries it under `dg.plan.*`."""

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from dg_lsp.bench.sites import Site
from dg_lsp.canvas.layout import TokenIds
from dg_lsp.canvas.tokenizer import Tokenizer
from dg_lsp.diffusion.denoiser import Denoiser, Prediction
from dg_lsp.engine.decoder_selection import PositionKind
from dg_lsp.engine.engine import Engine
from dg_lsp.engine.request import DecoderName, FillRequest
from dg_lsp.engine.request_denoiser import WrappedDenoiser
from dg_lsp.metrics.attempt import has_same_first_line
from dg_lsp.settings import FillSettings

LEAST_HITS = 0.001
"""Of a plan that was never right: no share of 0 can be weighed."""


class CountingDenoiser(WrappedDenoiser):
    """Counts forward passes by their sort over another denoiser."""

    def __init__(self, inner: Denoiser) -> None:
        super().__init__(inner)
        self.passes: Counter[str] = Counter()

    def predict(
        self,
        slot: int,
        canvases: Sequence[TokenIds],
        temperature: float,
        rng: np.random.Generator,
        lanes: Sequence[int] = (),
    ) -> list[Prediction]:
        """As the inner denoiser's."""
        self.passes["canvases"] += 1
        return super().predict(slot, canvases, temperature, rng, lanes)

    def extend(self, slot: int, ids: TokenIds) -> Prediction:
        """As the inner denoiser's; several ids are a guess: the plan before, a canvas, left the whole prompt cached."""
        self.passes["checks" if len(ids) > 1 else "singles"] += 1
        return super().extend(slot, ids)

    def close(self) -> None:
        """Closes the inner denoiser."""
        self._inner.close()


def plan_table(denoiser: Denoiser, tokenizer: Tokenizer, sites: Iterable[Site]) -> dict[str, str]:
    """`line-end.causal` -> mean passes of one token, over a guess, over canvases, and the share of right first lines.

    Only sites whose kind the planner knows count; a whole line is asked for as one.
    """
    counting = CountingDenoiser(denoiser)
    engine = Engine(counting, tokenizer, FillSettings(early_stop_ms=0))
    rows: dict[str, list[tuple[float, ...]]] = {}
    for site in sites:
        if site.kind not in set(PositionKind):
            continue
        for plan in (plan for plan in DecoderName if plan is not DecoderName.AUTO):
            counting.passes.clear()
            max_lines = 1 if site.kind == PositionKind.WHOLE_LINE else None
            request = FillRequest(site.snapshot, site.offset, max_lines=max_lines, plan=plan)
            result = engine.fill(request, deadline=float("inf"))
            passes = [float(counting.passes[sort]) for sort in ("singles", "checks", "canvases")]
            is_hit = has_same_first_line(result.text, site.want)
            rows.setdefault(f"{site.kind}.{plan}", []).append((*passes, float(is_hit)))
    return {name: _row(values) for name, values in rows.items()}


def _row(values: Sequence[tuple[float, ...]]) -> str:
    *passes, hits = np.mean(values, axis=0).tolist()
    return ",".join([*(f"{value:.2f}" for value in passes), f"{max(hits, LEAST_HITS):.3f}"])
