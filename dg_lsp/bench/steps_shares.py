"""Where the time of a denoising step goes: functions are timed from outside, so that production pays nothing for it."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from dg_lsp.diffusion import loop
from dg_lsp.diffusion.denoiser import Denoiser
from dg_lsp.engine.engine import Engine
from dg_lsp.engine.request import FillRequest

Functions = Sequence[tuple[object, str]]
"""Owners (modules or objects) and the names of their functions, which do not call each other."""

SAMPLERS: Functions = ((loop, "unmask"), (loop, "renoise"))


@dataclass(frozen=True, slots=True)
class Shares:
    """Mean milliseconds of a denoising step over real fills."""

    num_steps: int
    decode: float
    """The runtime's forward pass, with the wait for its logits."""
    self_conditioning: float
    """Feeding the last prediction back; a model of masks has none."""
    reduction: float
    """Logits to argmax, confidence and entropy."""
    sampling: float
    """Which positions are accepted, and with what."""
    python: float
    """All the rest: batches, checks, the loop, drafts and when they are enough."""

    @property
    def total(self) -> float:
        """All of a step."""
        return sum(self.parts().values())

    def parts(self) -> dict[str, float]:
        """Milliseconds by name."""
        names = ("decode", "self_conditioning", "reduction", "sampling", "python")
        return {name: getattr(self, name) for name in names}


def measure_shares(
    engine: Engine,
    denoiser: Denoiser,
    requests: Sequence[FillRequest],
    *,
    decode: Functions,
    reduction: Functions,
    self_conditioning: Functions = (),
) -> Shares:
    """Over real fills by their canvases; prefill and postprocessing are left out.

    Args:
        engine: asks for the fills.
        denoiser: the engine's own.
        requests: what is filled.
        decode: what the denoiser's `predict` calls for the forward pass.
        reduction: what it calls to reduce the logits.
        self_conditioning: what it calls to feed the last prediction back.
    """
    spent = _Spent()
    with ExitStack() as stack:
        stack.enter_context(_replaced(denoiser, "predict", spent.opening))
        inside = {"decode": decode, "reduction": reduction, "self_conditioning": self_conditioning}
        for name, functions in inside.items():
            for owner, function in functions:
                stack.enter_context(_replaced(owner, function, spent.counting(name, only_inside=True)))
        for owner, function in SAMPLERS:
            stack.enter_context(_replaced(owner, function, spent.counting("sampling", only_inside=False)))
        results = [engine.fill(request) for request in requests]
    num_steps = sum(result.steps for result in results)
    per_step = {name: 1e3 * seconds / max(1, num_steps) for name, seconds in spent.seconds.items()}
    total = sum(result.timings.denoise for result in results) / max(1, num_steps)
    return Shares(num_steps=num_steps, python=total - sum(per_step.values()), **per_step)


class _Spent:
    """Seconds by name."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(("decode", "reduction", "self_conditioning", "sampling"), 0.0)
        self._is_inside = False

    def opening(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """What is called inside of this function is inside of a step: a prefill decodes, too."""

        def opened(*arguments: Any, **options: Any) -> Any:
            self._is_inside = True
            try:
                return function(*arguments, **options)
            finally:
                self._is_inside = False

        return opened

    def counting(self, name: str, *, only_inside: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Makes a function that counts its time to `name`."""

        def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
            def counted(*arguments: Any, **options: Any) -> Any:
                start = time.perf_counter()
                try:
                    return function(*arguments, **options)
                finally:
                    if self._is_inside or not only_inside:
                        self.seconds[name] += time.perf_counter() - start

            return counted

        return wrap


@contextmanager
def _replaced(owner: object, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    """The owner's function is another one meanwhile."""
    was_own, function = name in vars(owner), getattr(owner, name)
    setattr(owner, name, make(function))
    try:
        yield
    finally:
        if was_own:
            setattr(owner, name, function)
        else:
            delattr(owner, name)
