"""Servers that break rules, and models behind them."""

import pytest
from lying_server import LyingServer
from remote_models import remote_models


@pytest.fixture
def serve():
    """`serve(answer, ..., tls=None)` -> a server with these answers."""
    servers = []

    def call(*answers, tls=None):
        servers.append(LyingServer(*answers, tls=tls))
        return servers[-1]

    yield call
    for server in servers:
        server.close()


@pytest.fixture
def model_of():
    """`model_of(url, **settings)` -> the model behind it, see `remote_models`."""
    with remote_models() as call:
        yield call
