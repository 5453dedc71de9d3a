"""Wall time of one request by stage."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from dg_lsp.engine.result import Timings


class Stopwatch:
    """Starts at once; each stage adds up over all its uses."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._stages: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Counts the time of the `with` block to this stage."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._stages[name] = self._stages.get(name, 0.0) + time.perf_counter() - start

    def timings(self) -> Timings:
        """Milliseconds so far; `denoise` is what neither prefill nor postprocess took."""
        total = time.perf_counter() - self._start
        prefill, predict, postprocess = (self._stages.get(name, 0.0) for name in ("prefill", "predict", "postprocess"))
        return Timings(
            prefill=1e3 * prefill,
            denoise=1e3 * (total - prefill - postprocess),
            postprocess=1e3 * postprocess,
            total=1e3 * total,
            decode=1e3 * (prefill + predict),
        )
