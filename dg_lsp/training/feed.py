"""Batches from worker processes, in a fixed order, each with the state that makes the next one. Knows no torch."""

import multiprocessing as mp
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from dg_lsp.training.config import TrainConfig
from dg_lsp.training.documents import Documents
from dg_lsp.training.rows import Batch, Rows
from dg_lsp.training.store import load_store
from dg_lsp.training.tokenizer import load_tokenizer

DEPTH = 4  # batches a worker is ahead

RowsState: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class FeedState:
    """What resumes a feed: every worker's state after its last consumed batch, and whose turn it is."""

    workers: tuple[RowsState | None, ...]
    turn: int = 0


def open_rows(root: Path, split: str, config: TrainConfig, seed: int) -> Rows:
    """Rows over a prepared split."""
    tokenizer = load_tokenizer(root / "tokenizer.json")
    shape = config.rows
    store = load_store(root / split)
    documents = Documents(
        store, tokenizer, shape.max_prompt, shape.max_middle, seed, shares=shape.middles, header=shape.header
    )
    return Rows(documents, shape)


def _work(
    root: Path, config: TrainConfig, seed: int, state: RowsState | None, queue: "mp.Queue[tuple[Batch, RowsState]]"
) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    rows = open_rows(root, "train", config, seed)
    if state:
        rows.restore(state)
    while True:
        queue.put((rows.batch(), rows.state()))


class Feed:
    """An iterator of training batches; `state` belongs to what was consumed, not to what was made ahead."""

    def __init__(self, root: Path, config: TrainConfig, state: FeedState | None = None, rank: int = 0) -> None:
        self.num = max(1, config.workers)
        self.states = list(state.workers if state else [None] * self.num)
        self.turn = state.turn if state else 0
        self.queues: list[mp.Queue[tuple[Batch, RowsState]]] = []
        self.processes: list[Any] = []
        self.inline: list[Rows] = []
        seeds = [config.seed * 1000 + rank * 100 + i for i in range(self.num)]
        if config.workers == 0:
            self.inline = [open_rows(root, "train", config, seeds[0])]
            if self.states[0]:
                self.inline[0].restore(self.states[0])
            return
        context = mp.get_context("spawn")
        for seed, worker_state in zip(seeds, self.states, strict=True):
            queue = context.Queue(DEPTH)
            process = context.Process(target=_work, args=(root, config, seed, worker_state, queue), daemon=True)
            process.start()
            self.queues.append(queue)
            self.processes.append(process)

    def __iter__(self) -> Iterator[Batch]:
        while True:
            if self.inline:
                batch, state = self.inline[0].batch(), self.inline[0].state()
            else:
                batch, state = self.queues[self.turn].get()
            self.states[self.turn] = state
            self.turn = (self.turn + 1) % self.num
            yield batch

    @property
    def state(self) -> FeedState:
        """What continues after the last batch that was handed out."""
        return FeedState(tuple(self.states), self.turn)

    def close(self) -> None:
        """Ends the worker processes."""
        for process in self.processes:
            process.terminate()
