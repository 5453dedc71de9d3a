"""Workers of scripted models."""

import pytest
from workers import LONG

from dg_lsp.engine.engine import Engine
from dg_lsp.engine.scheduler import Scheduler


@pytest.fixture
def worker_of():
    workers = []

    def make(denoiser, settings=LONG, before=lambda: None, **more):
        def open_engine():
            before()
            return Engine(denoiser, denoiser.tokenizer, settings)

        workers.append(Scheduler(open_engine, settings, **more))
        return workers[-1]

    yield make
    for worker in workers:
        worker.close()
