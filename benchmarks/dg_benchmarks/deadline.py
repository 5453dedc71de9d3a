"""Time to an answer where the prompt is cold and takes longer than the deadline, and to the same position afterwards.

    python -m dg_benchmarks.deadline MODEL FILE [--lines 3000] [--deadline 300] [--num 20] [--threads 0]

The file is repeated until it has so many lines. Each position is that of another file, so that nothing is cached. It is
requested while the model is idle, and then a second time: at once, as a client does that asks again, or after a rest.
"""

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from dg_lsp.cli.loading import open_engine
from dg_lsp.context.document import Snapshot
from dg_lsp.engine.request import FillRequest
from dg_lsp.engine.result import FillResult
from dg_lsp.engine.scheduler import Scheduler
from dg_lsp.settings import CompletionSettings, ModelSettings, Settings


def answered(scheduler: Scheduler, request: FillRequest) -> tuple[float, FillResult]:
    """Milliseconds and result."""
    began = time.perf_counter()
    result = scheduler.submit(request).result()
    return 1e3 * (time.perf_counter() - began), result


def rest(scheduler: Scheduler) -> float:
    """Seconds until the model is idle."""
    began = time.perf_counter()
    while not scheduler.is_idle:
        time.sleep(0.001)
    return time.perf_counter() - began


def report(name: str, found: Sequence[tuple[float, FillResult]]) -> None:
    """Prints times and outcomes."""
    times = sorted(ms for ms, _ in found)
    late = f"p50 {statistics.median(times):.0f} ms, p90 {times[int(0.9 * (len(times) - 1))]:.0f}, max {times[-1]:.0f}"
    results = [result for _, result in found]
    unfinished, cached = sum(one.is_unfinished for one in results), sum(one.is_cached for one in results)
    print(f"{name}: {late}; {unfinished} of {len(found)} unfinished, {cached} known", flush=True)


def main() -> None:
    """Prints the times of three requests at each position."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("file", type=Path)
    for option, default in (("lines", 3000), ("deadline", 300), ("num", 20), ("threads", 0)):
        parser.add_argument(f"--{option}", type=int, default=default)
    arguments = parser.parse_args()
    model = ModelSettings(name=arguments.model, threads=arguments.threads)
    settings = Settings(model=model, completion=CompletionSettings(deadline_ms=arguments.deadline, min_confidence=0.0))
    scheduler = Scheduler.of(open_engine, settings)
    scheduler.ready.result()
    lines = arguments.file.read_text("utf-8").splitlines()
    firsts, seconds, thirds, rests = list[tuple[float, FillResult]](), [], [], []
    for number in range(arguments.num):
        every = [f"value_{number}_{at} = {line}" if at % 7 == number % 7 else line for at, line in enumerate(lines)]
        text = "\n".join((every * (1 + arguments.lines // len(every)))[: arguments.lines])
        offset = text.index("\n", (2 + number) * len(text) // (arguments.num + 4))
        request = FillRequest(Snapshot(f"file:///{number}.py", 1, text), offset)
        firsts.append(answered(scheduler, request))
        seconds.append(answered(scheduler, request))
        rests.append(rest(scheduler))
        thirds.append(answered(scheduler, request))
        rest(scheduler)
    report(f"first request, deadline {arguments.deadline} ms", firsts)
    report("again at once", seconds)
    report("again after the rest", thirds)
    print(f"rest: median {statistics.median(rests):.2f} s; prompts: {max(r.prompt_tokens for _, r in thirds)} tokens")
    scheduler.close()


if __name__ == "__main__":
    main()
