"""The part of a canvas that is filled, between what stands frozen before and after it."""

import numpy as np

from dg_lsp.diffusion.step import Step


def hole_of(step: Step) -> Step:
    """The step without the frozen runs at both ends; the very same where nothing is frozen.

    Looks at the step and not at its plan: a model may have made the hole longer or shorter meanwhile.
    """
    where = hole_slice(step)
    if where == slice(0, len(step.frozen)):
        return step
    return step.take(where)


def hole_slice(step: Step) -> slice:
    """Where the free positions are; empty where none is left."""
    free = np.flatnonzero(~step.frozen)
    return slice(int(free[0]), int(free[-1]) + 1) if len(free) else slice(0, 0)
