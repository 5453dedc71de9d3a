"""Servers of the tests, and models that do what a test says."""

import pytest
from http_server import Starter
from workers import Gate

from dg_lsp.backends.scripted import ScriptedDenoiser


@pytest.fixture
def start():
    starter = Starter()
    yield starter
    starter.stop()


@pytest.fixture(scope="module")
def module_client():
    """A server that a module's tests share; its model fills `total`."""
    starter = Starter()
    yield starter(ScriptedDenoiser("total"))
    starter.stop()


@pytest.fixture(scope="module")
def changeable():
    """A server that a module's tests share, and the model whose script they change."""
    starter, denoiser = Starter(), ScriptedDenoiser("")
    yield starter(denoiser), denoiser
    starter.stop()


@pytest.fixture
def ask(changeable):
    """Asks a server whose model fills this: `ask("x", "/infill", {...})`."""
    client, denoiser = changeable

    def call(fill, path, body):
        denoiser._fill = fill
        return client.post(path, body)

    return call


@pytest.fixture
def gated():
    """A model that waits inside each step until it is let go on."""
    made = []

    def call(fill, **script):
        made.append(Gate(fill, **script))
        return made[-1]

    yield call
    for denoiser in made:
        denoiser.go_on.set()
