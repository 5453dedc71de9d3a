"""Models behind servers, for tests that ask them directly."""

from contextlib import contextmanager

from dg_lsp.backends.remote.model import open_remote
from dg_lsp.settings import RemoteSettings


@contextmanager
def remote_models():
    """`open(url, **settings)` -> the model there, never asked twice and never rested from; closed in the end."""
    models = []

    def call(url, **settings):
        models.append(open_remote(RemoteSettings(url=url, **{"retries": 0, "pause_ms": 0.0, **settings})))
        return models[-1]

    yield call
    for model in models:
        model.close()
