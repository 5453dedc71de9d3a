"""Time of the parts of a denoising step, in real fills by diffusion.

    python -m dg_benchmarks.step_parts [--model MODEL] [--threads N]

Prints one JSON object: `parts` are mean milliseconds per step.
"""

import argparse
import json
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any
from unittest import mock

from dg_benchmarks.steps import sample_requests
from dg_lsp.backends.llamacpp.denoiser import ContextDenoiser
from dg_lsp.backends.llamacpp.device_reduction import GraphReduction
from dg_lsp.backends.llamacpp.diffusiongemma import SelfConditionedDenoiser
from dg_lsp.cli.loading import configure, open_local
from dg_lsp.cli.options import overrides
from dg_lsp.diffusion import samplers
from dg_lsp.diffusion.denoiser import Denoiser
from dg_lsp.engine.engine import Engine, LocalEngine
from dg_lsp.engine.request import FillRequest

if TYPE_CHECKING:
    from dg_lsp.backends.transformers.denoiser import TransformersDenoiser

Functions = Sequence[tuple[object, str]]
"""Owners (modules or objects) and the names of their functions."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures a model and prints the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="name or path; default: the model of the settings")
    parser.add_argument("--threads", type=int)
    options = parser.parse_args(arguments)
    settings = configure(overrides(model=options.model, threads=options.threads, gpu_layers=None))
    _, denoiser = open_local(settings)
    engine = LocalEngine(denoiser, denoiser.tokenizer, settings.completion)
    try:
        parts = measure_parts(engine, denoiser, sample_requests(), functions_of(denoiser))
    finally:
        engine.close()
    print(json.dumps({"model": denoiser.spec.name, "threads": denoiser.threads, "parts": parts}))


def measure_parts(
    engine: Engine, denoiser: Denoiser, requests: Sequence[FillRequest], functions: Mapping[str, Functions]
) -> dict[str, float]:
    """Mean milliseconds of the parts of a step in real fills by diffusion.

    `functions` are called by the `predict` of the denoiser, and are replaced by timed ones during the measurement.
    `python` is the time outside the functions: batches, checks, the loop, stop criteria.
    """
    timer = Timer()
    with ExitStack() as stack:
        stack.enter_context(timer.replacing(denoiser, "predict", "predict"))
        for name, listed in functions.items():
            for owner, function in listed:
                stack.enter_context(timer.replacing(owner, function, name, within="predict"))
        for function in ("unmask", "renoise"):
            stack.enter_context(timer.replacing(samplers, function, "sampling"))
        results = [engine.fill(request, deadline=math.inf) for request in requests]
    num_steps = sum(result.steps for result in results)
    names = ("decode", "self_conditioning", "reduction", "sampling")
    parts = {name: timer.ms[name] / max(1, num_steps) for name in names}
    denoise = sum(result.timings.denoise for result in results) / max(1, num_steps)
    return {**parts, "python": denoise - sum(parts.values())}


def functions_of(denoiser: "ContextDenoiser | TransformersDenoiser") -> Mapping[str, Functions]:
    """The functions behind `predict` for `measure_parts`."""
    if not isinstance(denoiser, ContextDenoiser):  # one call to the device does everything, another one waits for it
        return {"decode": ((denoiser.stepper, "run"), (denoiser, "_fetched"))}
    context, reducer = denoiser._context, denoiser._reducer
    decode = ((context, "decode"), (context, "logits"))
    if not isinstance(denoiser, SelfConditionedDenoiser):
        return {"decode": decode, "reduction": ((reducer, "reduce"),), "self_conditioning": ()}
    reduction = denoiser._reduction
    in_graph = isinstance(reduction, GraphReduction)
    return {
        "decode": decode,
        "reduction": ((reduction, "_read"),) if in_graph else ((reducer, "reduce"),),
        "self_conditioning": ((denoiser, "_input_rows"), (reduction, "record")),
    }


class Timer:
    """Milliseconds by name of functions that are replaced temporarily."""

    def __init__(self) -> None:
        self.ms: Counter[str] = Counter()
        self._running: set[str] = set()

    def replacing(self, owner: object, function: str, name: str, within: str | None = None) -> Any:
        """A context that measures calls of the function as `name`; with `within`, only calls inside that one."""
        original = getattr(owner, function)

        def timed(*arguments: Any, **options: Any) -> Any:
            start = time.perf_counter()
            self._running.add(name)
            try:
                return original(*arguments, **options)
            finally:
                self._running.discard(name)
                if within is None or within in self._running:
                    self.ms[name] += 1e3 * (time.perf_counter() - start)  # type: ignore[assignment]

        return mock.patch.object(owner, function, timed)


if __name__ == "__main__":
    main()
