"""Servers of the tests, and models that do what a test scripts."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from gates import Gate
from http_server import OPERATOR, Starter

from dg_lsp.backends.scripted import ScriptedDenoiser


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
    made = []

    def call(fill, **script):
        made.append(Gate(fill, **script))
        return made[-1]

    yield call
    for denoiser in made:
        denoiser.go_on.set()
