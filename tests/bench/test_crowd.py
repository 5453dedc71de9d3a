"""A small, short run of `benchmarks/crowd.py`: every client gets its own answer, and mistakes are detected."""

import asyncio
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from http_server import Starter
from uvicorn.protocols.http.h11_impl import H11Protocol
from workers import TIMEOUT

from dg_lsp.backends.scripted import ScriptedDenoiser
from dg_lsp.errors import BackendError

SCRIPTS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def crowd(monkeypatch):
    monkeypatch.syspath_prepend(SCRIPTS)
    import crowd

    yield crowd
    del sys.modules["crowd"]


@pytest.fixture
def serve():
    starter = Starter()
    yield starter
    starter.stop()


def run(*options):
    command = [sys.executable, SCRIPTS / "crowd.py", "--json", *options]
    process = subprocess.run(command, capture_output=True, text=True, timeout=10 * TIMEOUT, check=False)
    return process.returncode, json.loads(process.stdout)


def test_every_client_gets_its_own_answer():
    code, found = run("--clients", "5", "--seconds", "2")
    assert code == 0
    assert found["answers"] > 0
    assert (found["lost"], found["crossed"], found["unforeseen"]) == (0, 0, {})
    assert found["changed"] < 0.1 * found["answers"]  # near ties, see there
    assert 0 < found["most_inside"] <= 5
    assert found["inside_after"] == 0
    assert found["prompts_that_say_their_name"] > 5


def test_clients_beyond_the_limit_get_a_retry_time():
    code, found = run("--clients", "6", "--seconds", "1", "--waiting", "1")
    assert code == 0
    assert found["come_again_share"] > 0
    assert found["most_inside"] <= 1


def tally_of(crowd, serve, denoiser, *, at_once=lambda: None):
    """Tally of four clients; `at_once` is called after each of them has sent a request alone."""
    people = crowd.Crowd(serve(denoiser).port, 4, 0)

    async def send():
        await people.ask_alone()
        at_once()
        await people.ask_at_once(0.5)

    asyncio.run(send())
    return people.tally


def test_an_answer_to_the_prompt_of_another_client_is_detected(crowd, serve):
    names = ["apple_river", "apple_copper"]

    def fill(prefix, _suffix):
        return random.choice(names) if "apple" in prefix else "x"

    tally = tally_of(crowd, serve, ScriptedDenoiser(fill))
    assert tally.crossed > 0
    assert tally.changed > 0


def test_a_closed_connection_is_detected(crowd, serve, monkeypatch):
    def hang_up(self, _data):
        self.transport.abort()

    tally = tally_of(
        crowd,
        serve,
        ScriptedDenoiser("x"),
        at_once=lambda: monkeypatch.setattr(H11Protocol, "data_received", hang_up),
    )
    assert 4 <= tally.lost < 100
    assert not tally.statuses


def test_an_unexpected_status_is_detected(crowd, serve):
    def fail(*_args, **_more):
        raise BackendError("the graph failed; lower gpu_layers")

    denoiser = ScriptedDenoiser("x")
    tally = tally_of(crowd, serve, denoiser, at_once=lambda: setattr(denoiser, "predict", fail))
    assert any(status.startswith("500 ") for status in tally.unforeseen)
