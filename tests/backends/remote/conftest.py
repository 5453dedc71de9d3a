"""Lying servers, and models behind them."""

import pytest
from lying_server import LyingServer
from remote_models import remote_models


@pytest.fixture
def lie():
    """`lie(answer, ..., tls=None)` -> a server of such answers."""
    servers = []

    def call(*answers, tls=None):
        servers.append(LyingServer(*answers, tls=tls))
        return servers[-1]

    yield call
    for server in servers:
        server.close()


@pytest.fixture
def model_of():
    """`model_of(url, **settings)` -> the model behind it."""
    with remote_models() as call:
        yield call
