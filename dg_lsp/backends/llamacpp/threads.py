"""How many CPU threads a step gets: measured, because neither core counts nor load averages tell."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

_TIE = 1.05
"""More threads must win by more than this; those not used are somebody else's."""
_MAX_ROUNDS = 12
_MIN_ROUNDS = 2
_RUNS = 3
"""Runs in a row, the first of which also starts or stops threads."""
_HOPELESS = 3
"""Whose best run takes so many times the best of all is not tried again: where threads stall, trying is slow."""


@dataclass(frozen=True, slots=True)
class ThreadChoice:
    """The measurement's outcome, for `doctor`."""

    threads: int
    step_seconds: tuple[tuple[int, float], ...]
    """Mean seconds of a step by number of threads, the worst runs left out; empty when nothing was measured."""


def choose_threads(
    step: Callable[[int], None],
    candidates: Sequence[int],
    *,
    budget_seconds: float = 0.2,
    clock: Callable[[], float] = time.perf_counter,
) -> ThreadChoice:
    """The candidate with the fastest steps; `step(n)` runs one with n threads.

    Candidates take turns, so that a load that comes and goes meets all of them. The worst runs of each are left out:
    one stall is an accident, many are the machine as it is now.
    """
    if len(candidates) == 1:
        return ThreadChoice(candidates[0], ())
    runs: dict[int, list[float]] = {threads: [] for threads in candidates}
    hopeful, start = list(candidates), clock()
    for number in range(_MAX_ROUNDS):
        if len(hopeful) == 1 or (number >= _MIN_ROUNDS and clock() - start > budget_seconds):
            break
        for threads in hopeful:
            for _ in range(_RUNS):
                before = clock()
                step(threads)
                runs[threads].append(clock() - before)
        limit = _HOPELESS * min(map(min, runs.values()))
        hopeful = [threads for threads in hopeful if min(runs[threads]) <= limit]
    means = {threads: _mean_of_better(times) for threads, times in runs.items()}
    fastest = min(means.values())
    return ThreadChoice(
        min(threads for threads, mean in means.items() if mean <= _TIE * fastest), tuple(sorted(means.items()))
    )


def _mean_of_better(times: Sequence[float]) -> float:
    # A third of them start or stop threads; leaving those out leaves one accident out too.
    kept = sorted(times)[: len(times) - max(1, len(times) // _RUNS)]
    return sum(kept) / len(kept)


def threads_for(wanted: int, step: Callable[[int], None], *, on_gpu: bool) -> ThreadChoice:
    """What is wanted, or with 0 what is fastest; on a GPU a few are enough."""
    cores = physical_cores()
    if wanted:
        # Beyond the machine's own threads nothing gains, and ggml aborts beyond a few hundred.
        return ThreadChoice(min(wanted, 2 * cores), ())
    if on_gpu:
        return ThreadChoice(min(cores, 4), ())
    return choose_threads(step, thread_candidates(cores))


def thread_candidates(num_cores: int) -> tuple[int, ...]:
    """1, 2, 4, ... and the number of cores itself."""
    powers = {1 << bit for bit in range(num_cores.bit_length()) if 1 << bit <= num_cores}
    return tuple(sorted(powers | {num_cores}))


def physical_cores(root: Path = Path("/sys/devices/system/cpu")) -> int:
    """Cores that this process may use, two threads of one core counted once where the system tells."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    cores = set()
    for cpu in allowed:
        try:
            cores.add((root / f"cpu{cpu}/topology/thread_siblings_list").read_text())
        except OSError:
            cores.add(str(cpu))
    return max(1, len(cores))
