"""Wall time of one request by stage."""

import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import TypeVar

from dg_lsp.engine.result import Timings

Value = TypeVar("Value")
Result = TypeVar("Result")


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

    def passing_on(self, values: Generator[Value, None, Result]) -> Generator[Value, None, Result]:
        """The generator itself; the time until its next value is asked for belongs to whoever looks at the last one."""
        try:
            while True:
                value = next(values)
                with self.stage("looking"):
                    yield value
        except StopIteration as end:
            result: Result = end.value
            return result
        finally:
            values.close()

    def timings(self) -> Timings:
        """Milliseconds so far; `denoise` is what neither prefill nor postprocess took."""
        names = ("prompt", "prefill", "predict", "postprocess", "looking")
        prompt, prefill, predict, postprocess, looking = (self._stages.get(name, 0.0) for name in names)
        total = time.perf_counter() - self._start - looking
        return Timings(
            prefill=1e3 * (prompt + prefill),
            denoise=1e3 * (total - prompt - prefill - postprocess),
            postprocess=1e3 * postprocess,
            total=1e3 * total,
            predict=1e3 * predict,
        )
