"""`dg_benchmarks.crowd`: every client gets its own answers, and errors of a server are detected.

Each client sends a fixed number of requests, so that the load of the machine does not matter.
"""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from gates import TIMEOUT
from http_server import Starter, wait_until
from scripted import ScriptedDenoiser
from uvicorn.protocols.http.h11_impl import H11Protocol

from dg_benchmarks import crowd
from dg_lsp.http.auth import AccessRules

PROJECT = Path(__file__).parents[1]
NUM_CLIENTS, NUM_REQUESTS = 4, 6


@pytest.fixture
def send():
    """Sends all prompts, calls `between`, sends requests of all clients at once, and returns their tally."""
    serve = Starter()

    def call(denoiser, between, **rules):
        clients = crowd.Crowd(serve(denoiser, rules=AccessRules(**rules)).port, NUM_CLIENTS, 0)

        async def run():
            await clients.send_alone()
            between(clients.tally)
            await clients.send_at_once(TIMEOUT, NUM_REQUESTS)

        asyncio.run(run())
        return clients.tally

    yield call
    serve.close()


def test_every_client_of_a_real_server_gets_its_own_answers():
    command = [sys.executable, "-m", "dg_benchmarks.crowd", "--json", "--clients", "5", "--requests", "6"]
    process = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=10 * TIMEOUT, check=False)
    figures = json.loads(process.stdout)
    assert process.returncode == 0
    assert figures["answers"] > 0
    assert (figures["lost"], figures["crossed"], figures["unexpected"]) == (0, 0, {})
    assert figures["prompts_with_a_name_in_the_answer"] > 2


def test_clients_beyond_the_limit_are_refused_and_not_lost(send):
    tallies = []

    class Waiting(ScriptedDenoiser):
        def predict(self, *args, **options):
            if tallies:
                wait_until(lambda: sum(tallies[0].statuses[status] for status in (429, 503)))
            return super().predict(*args, **options)

    tally = send(Waiting("x"), tallies.append, max_queued=1)
    assert tally.statuses[429] + tally.statuses[503] > 0
    assert (tally.lost, tally.unexpected) == (0, {})


def test_an_answer_to_another_client_is_detected(send):
    answers = ["x"]
    tally = send(ScriptedDenoiser(lambda *_: answers[-1]), lambda _: answers.append("apple_river"))
    assert tally.crossed > 0
    assert tally.changed > 0


def test_a_closed_connection_is_detected(send, monkeypatch):
    def hang_up(_):
        monkeypatch.setattr(H11Protocol, "data_received", lambda self, _data: self.transport.abort())

    tally = send(ScriptedDenoiser("x"), hang_up)
    assert tally.lost + tally.num_abandoned == NUM_CLIENTS * NUM_REQUESTS
    assert tally.lost > 0
    assert not tally.statuses
