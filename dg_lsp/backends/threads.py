"""The number of CPU threads of a step, by measurement, and how threads of OpenMP wait."""

import os
import time
from collections.abc import Callable, MutableMapping, Sequence
from pathlib import Path

# Threads of OpenMP spin at each of a graph's hundreds of barriers by default. When another program needs a core, a
# spinning thread takes it from the thread that the barrier waits for: with two threads, steps of 5 ms took 15 to
# 1600 ms. Sleeping costs up to 50 % on an idle machine; the thread measurement at load includes this cost.
_WAIT_VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


def set_wait_policy(environment: MutableMapping[str, str]) -> None:
    """Makes OpenMP threads sleep while they wait, unless the user chose otherwise. OpenMP reads it when it loads."""
    if not any(name in environment for name in _WAIT_VARIABLES):
        environment[_WAIT_VARIABLES[0]] = "passive"


_TIE = 1.05
"""More threads must be faster by more than this factor."""
_MIN_ROUNDS, _MAX_ROUNDS = 2, 12
_RUNS = 3
"""Runs of a candidate in a row; the first of them also starts or stops threads."""
_BUDGET_SECONDS = 0.2
"""After this time no further round begins."""
_HOPELESS = 3
"""A candidate whose best run takes this many times the best run of all is dropped: stalls make trying it slow."""


def choose_threads(
    step: Callable[[int], None], candidates: Sequence[int], *, clock: Callable[[], float] = time.perf_counter
) -> int:
    """Measures steps and returns the fastest candidate; `step(n)` runs one step with n threads.

    Candidates take turns, so that other load on the machine affects all of them. The slowest runs of each candidate
    do not count.
    """
    runs: dict[int, list[float]] = {threads: [] for threads in candidates}
    remaining = list(candidates)
    start = clock()
    for number in range(_MAX_ROUNDS):
        if len(remaining) == 1 or (number >= _MIN_ROUNDS and clock() - start > _BUDGET_SECONDS):
            break
        for threads in (candidate for candidate in remaining for _ in range(_RUNS)):
            before = clock()
            step(threads)
            runs[threads].append(clock() - before)
        limit = _HOPELESS * min(map(min, runs.values()))
        remaining = [threads for threads in remaining if min(runs[threads]) <= limit]
    # a third of the runs start or stop threads; without the slowest third, a single stall does not count either
    fast = {threads: sorted(times)[: -max(1, len(times) // _RUNS)] for threads, times in runs.items()}
    means = {threads: sum(times) / max(1, len(times)) for threads, times in fast.items()}
    fastest = min(means.values())
    return min(threads for threads, mean in means.items() if mean <= _TIE * fastest)


def threads_for(wanted: int, step: Callable[[int], None], *, on_gpu: bool) -> int:
    """The setting's number of threads; for 0 a few on a GPU, and the measured best on a CPU."""
    cores = physical_cores()
    if wanted:
        return min(wanted, 2 * cores)  # ggml aborts the process beyond a few hundred
    if on_gpu:
        return min(cores, 4)
    powers = {1 << bit for bit in range(cores.bit_length())}
    return choose_threads(step, sorted(powers | {cores}))


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
