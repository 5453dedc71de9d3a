"""Chooses the number of CPU threads of a step by measurement."""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

_TIE = 1.05
"""More threads must be faster by more than this factor."""
_MIN_ROUNDS, _MAX_ROUNDS = 2, 12
_RUNS = 3
"""Runs of a candidate in a row; the first of them also starts or stops threads."""
_HOPELESS = 3
"""A candidate whose best run takes this many times the best run of all is dropped: stalls make trying it slow."""


def choose_threads(
    step: Callable[[int], None],
    candidates: Sequence[int],
    *,
    budget_seconds: float = 0.2,
    clock: Callable[[], float] = time.perf_counter,
) -> int:
    """Measures steps and returns the fastest candidate; `step(n)` runs one step with n threads.

    Candidates take turns, so that other load on the machine affects all of them. The slowest runs of each candidate
    do not count.
    """
    if len(candidates) == 1:
        return candidates[0]
    runs: dict[int, list[float]] = {threads: [] for threads in candidates}
    remaining, start = list(candidates), clock()
    for number in range(_MAX_ROUNDS):
        if len(remaining) == 1 or (number >= _MIN_ROUNDS and clock() - start > budget_seconds):
            break
        for threads in remaining:
            for _ in range(_RUNS):
                before = clock()
                step(threads)
                runs[threads].append(clock() - before)
        limit = _HOPELESS * min(map(min, runs.values()))
        remaining = [threads for threads in remaining if min(runs[threads]) <= limit]
    means = {threads: _mean_without_slowest(times) for threads, times in runs.items()}
    fastest = min(means.values())
    return min(threads for threads, mean in means.items() if mean <= _TIE * fastest)


def _mean_without_slowest(times: Sequence[float]) -> float:
    # a third of the runs start or stop threads; without the slowest third, a single stall does not count either
    kept = sorted(times)[: len(times) - max(1, len(times) // _RUNS)]
    return sum(kept) / len(kept)


def threads_for(wanted: int, step: Callable[[int], None], *, on_gpu: bool) -> int:
    """The setting's number of threads; for 0 a few on a GPU, and the measured best on a CPU."""
    cores = physical_cores()
    if wanted:
        # ggml aborts the process beyond a few hundred
        return min(wanted, 2 * cores)
    if on_gpu:
        return min(cores, 4)
    return choose_threads(step, thread_candidates(cores))


def thread_candidates(num_cores: int) -> tuple[int, ...]:
    """1, 2, 4, ... and the number of cores."""
    powers = {1 << bit for bit in range(num_cores.bit_length()) if 1 << bit <= num_cores}
    return tuple(sorted(powers | {num_cores}))


def physical_cores(root: Path = Path("/sys/devices/system/cpu")) -> int:
    """Cores that this process may use; hardware threads of a core count once where the system reports them."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    cores = set()
    for cpu in allowed:
        try:
            cores.add((root / f"cpu{cpu}/topology/thread_siblings_list").read_text())
        except OSError:
            cores.add(str(cpu))
    return max(1, len(cores))
