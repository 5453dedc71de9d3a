"""What the plans are called, and what each needs of a model."""

from enum import StrEnum


class PlanName(StrEnum):
    """How a request is decoded; as settings, the command line and records write it."""

    AUTO = "auto"
    """Whichever is expected to be useful first on this machine."""
    CANVAS = "canvas"
    """One open canvas, denoised."""
    RACE = "race"
    """Several canvases in one batch; the one that is judged best wins."""
    CAUSAL = "causal"
    """Token by token, greedily."""
    DRAFT_VERIFY = "draft-verify"
    """A canvas drafts; one causal pass accepts the longest run that it agrees with. Says what `causal` says."""
    LOOKUP = "lookup"
    """As draft-verify, but the draft is what followed the same last tokens elsewhere in the buffer."""

    @property
    def needs_canvas(self) -> bool:
        """Only for models that denoise."""
        return self in (PlanName.CANVAS, PlanName.RACE, PlanName.DRAFT_VERIFY)

    @property
    def needs_causal_head(self) -> bool:
        """Only for weights that also decode token by token."""
        return self in (PlanName.CAUSAL, PlanName.DRAFT_VERIFY, PlanName.LOOKUP)
