"""Servers of the tests, and models that do what a test scripts."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import pytest
from gates import TIMEOUT, Gate
from http_server import GAP, OPERATOR, Starter
from scripted import ScriptedDenoiser


@pytest.fixture
def start():
    with closing(Starter()) as starter:
        yield starter


@pytest.fixture(scope="module")
def module_start():
    with closing(Starter()) as starter:
        yield starter


@pytest.fixture(scope="module")
def module_client(module_start):
    """A server shared by the tests of a module; its model completes `total`."""
    return module_start(ScriptedDenoiser("total"))


@pytest.fixture(scope="module")
def changeable(module_start):
    """A server shared by the tests of a module, and its model, whose script they change."""
    denoiser = ScriptedDenoiser("")
    return module_start(denoiser, rules=OPERATOR), denoiser


@pytest.fixture
def pool():
    with ThreadPoolExecutor() as pool:
        yield pool


@pytest.fixture
def complete(changeable):
    """Posts to a server whose model completes this: `complete("x", "/infill", {...})`."""
    client, denoiser = changeable

    def call(fill, path, body):
        denoiser._fill = fill
        return client.post(path, body)

    return call


@pytest.fixture
def gated():
    """A model that waits inside each step until the test lets it go on."""
    denoisers = []

    def call(fill, **script):
        denoisers.append(Gate(fill, **script))
        return denoisers[-1]

    yield call
    for denoiser in denoisers:
        denoiser.go_on.set()


@pytest.fixture
def occupy(pool):
    """`with occupy(denoiser, client):` the model is inside a request of this client, which ends with the block."""

    @contextmanager
    def call(denoiser, client, body=GAP, **headers):
        running = pool.submit(client.post, "/infill", body, **headers)
        assert denoiser.is_inside.wait(TIMEOUT)
        yield
        denoiser.go_on.set()
        assert running.result(TIMEOUT).status == 200

    return call
