"""The model's own sampling, and the settings over it."""

from dataclasses import replace

from dg_lsp.canvas.spec import MaskSampling, Sampling, UnmaskOrder


def with_overrides(sampling: Sampling | None, confidence_threshold: float, order: str) -> Sampling | None:
    """The model's own value where a setting is left at 0 or empty; only mask noise has these two."""
    if not isinstance(sampling, MaskSampling):
        return sampling
    return replace(
        sampling,
        confidence_threshold=confidence_threshold or sampling.confidence_threshold,
        order=UnmaskOrder(order) if order else sampling.order,
    )
