"""The temperature of each denoising step."""

from dg_lsp.canvas.spec import MaskSampling, Sampling


def temperature(sampling: Sampling, number: int, *, explore: bool = False) -> float:
    """Temperature of step `number` (from 1).

    Uniform noise cools linearly from `t_max` at the first step to almost `t_min` at the last (transformers 5.23).
    Mask noise is greedy, 0, unless samples are wanted, 1: a prediction's confidence is the same at both.
    """
    if isinstance(sampling, MaskSampling):
        return 1.0 if explore else 0.0
    num_left = sampling.max_denoising_steps - number + 1
    return sampling.t_min + (sampling.t_max - sampling.t_min) * num_left / sampling.max_denoising_steps
