"""What a completion waits for while long fills keep the model busy: by priority, and first come, first served.

    python benchmarks/turns.py [--requests 200] [--seed 0]

One thread asks for blocks of 200 tokens in one file, one after another; the other asks for lines at places of another
file, a moment apart. Both ways are taken in turns, so that a busy machine troubles both alike. Every line has to be the
one that is given when nothing else runs.
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
"""Requests after which the other way has its turn."""


def places(name: str) -> list[FillRequest]:
    """Behind the first half of each longer line."""
    text, found, at = (SAMPLES / name).read_text(encoding="utf-8"), [], 0
    for line in text.splitlines(keepends=True):
        if len(line.strip()) > 12:
            offset = at + len(line) // 2
            found.append(FillRequest(Snapshot(f"file:///{name}", 0, text, "python"), offset, early_stop_ms=0))
        at += len(line)
    return found


class Background:
    """Long fills without a pause, as urgent as it is told."""

    def __init__(self, worker: Scheduler) -> None:
        self.priority = Priority.TYPED
        self.num_done = 0
        self._worker = worker
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """After the fill that it is at."""
        self._is_over.set()
        self._thread.join()

    def _ask(self) -> None:
        number = 0
        while not self._is_over.is_set():
            number += 1
            snapshot = Snapshot("file:///long.py", number, LONG, "python")
            asked = FillRequest(snapshot, len(LONG), max_lines=40, max_tokens=200, early_stop_ms=0, seed=number)
            asked = replace(asked, priority=self.priority, decoder=DecoderName.DIFFUSION, deadline_ms=60_000)
            try:
                self._worker.submit(asked).result()
            except CancelledError:
                return
            self.num_done += 1


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    fill = CompletionSettings(type_through=False, speculate=False, deadline_ms=60_000)
    worker = Scheduler.of(open_engine, Settings(completion=fill, model=ModelSettings(gpu_layers=0)))
    worker.ready.result()
    lines, pause = places("inventory.py"), random.Random(given.seed)
    alone = {one.offset: worker.submit(one).result().text for one in lines}
    background, waits, num_other = Background(worker), {}, 0
    for number in range(2 * given.requests):
        way = "by priority" if number // ROUND % 2 else "as they come"
        background.priority = Priority.REWRITE if way == "by priority" else Priority.TYPED
        time.sleep(pause.uniform(0.005, 0.03))
        asked, began = lines[number % len(lines)], time.perf_counter()
        text = worker.submit(asked).result().text
        waits.setdefault(way, []).append(1e3 * (time.perf_counter() - began))
        num_other += text != alone[asked.offset]
    background.stop()
    for way, times in waits.items():
        cuts = statistics.quantiles(times, n=20)
        print(f"{way:14}  p50 {statistics.median(times):6.1f} ms  p95 {cuts[18]:6.1f} ms  of {len(times)} lines")
    print(f"{background.num_done} blocks meanwhile; {num_other} lines were others than alone")
    worker.close()


if __name__ == "__main__":
    main()
