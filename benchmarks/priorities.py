"""Waiting time of completions while long fills keep the model busy: with priorities, and in order of arrival.

    python benchmarks/priorities.py [--requests 200] [--seed 0]

One thread requests blocks of 200 tokens in one file, one after another. The main thread requests lines at positions of
another file, with short pauses. Both orders alternate, so that the load of the machine affects them alike. Prints the
number of lines that differ from the answer without other requests.
"""

import argparse
import random
import statistics
import threading
import time
from concurrent.futures import CancelledError
from dataclasses import replace
from pathlib import Path

from dg_lsp.canvas.spec import DecoderName
from dg_lsp.cli.loading import open_engine
from dg_lsp.context.document import Snapshot
from dg_lsp.engine.request import FillRequest, Priority
from dg_lsp.engine.scheduler import Scheduler
from dg_lsp.settings import CompletionSettings, ModelSettings, Settings

SAMPLES = Path(__file__).parents[1] / "samples"
LONG = "class Ledger:\n    def __init__(self, owner):\n        self.owner = owner\n\n    def describe(self):\n        "
ROUND = 25
"""Number of requests after which the other order is measured."""


def line_requests(name: str) -> list[FillRequest]:
    """Requests in the middle of each longer line of a sample file."""
    text, found, at = (SAMPLES / name).read_text(encoding="utf-8"), [], 0
    for line in text.splitlines(keepends=True):
        if len(line.strip()) > 12:
            offset = at + len(line) // 2
            found.append(FillRequest(Snapshot(f"file:///{name}", 0, text, "python"), offset, early_stop_ms=0))
        at += len(line)
    return found


class Background:
    """Sends long fills without a pause, with the priority of its attribute."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.priority = Priority.TYPED
        self.num_done = 0
        self._scheduler = scheduler
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Waits for the current fill and sends no other."""
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        number = 0
        while not self._is_over.is_set():
            number += 1
            snapshot = Snapshot("file:///long.py", number, LONG, "python")
            request = FillRequest(snapshot, len(LONG), max_lines=40, max_tokens=200, early_stop_ms=0, seed=number)
            request = replace(request, priority=self.priority, decoder=DecoderName.DIFFUSION, deadline_ms=60_000)
            try:
                self._scheduler.submit(request).result()
            except CancelledError:
                return
            self.num_done += 1


def main() -> None:
    """Measures and prints the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    fill = CompletionSettings(type_through=False, speculate=False, deadline_ms=60_000)
    scheduler = Scheduler.of(open_engine, Settings(completion=fill, model=ModelSettings(gpu_layers=0)))
    scheduler.ready.result()
    lines, pause = line_requests("inventory.py"), random.Random(options.seed)
    alone = {one.offset: scheduler.submit(one).result().text for one in lines}
    background, waits, num_changed = Background(scheduler), {}, 0
    for number in range(2 * options.requests):
        order = "by priority" if number // ROUND % 2 else "by arrival"
        background.priority = Priority.REWRITE if order == "by priority" else Priority.TYPED
        time.sleep(pause.uniform(0.005, 0.03))
        request, began = lines[number % len(lines)], time.perf_counter()
        text = scheduler.submit(request).result().text
        waits.setdefault(order, []).append(1e3 * (time.perf_counter() - began))
        num_changed += text != alone[request.offset]
    background.stop()
    for order, times in waits.items():
        cuts = statistics.quantiles(times, n=20)
        print(f"{order:12}  p50 {statistics.median(times):6.1f} ms  p95 {cuts[18]:6.1f} ms  of {len(times)} lines")
    print(f"{background.num_done} blocks at the same time; {num_changed} lines differ from those without them")
    scheduler.close()


if __name__ == "__main__":
    main()
