"""Lying servers, and models behind them."""

import pytest
from lying_server import LyingServer

from dg_lsp.backends.remote import open_remote
from dg_lsp.settings import RemoteSettings


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
    models = []

    def call(url, **settings):
        models.append(open_remote(RemoteSettings(url=url, **{"retries": 0, "pause_ms": 0.0, **settings})))
        return models[-1]

    yield call
    for model in models:
        model.close()
