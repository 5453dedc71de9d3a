"""Models behind servers, for tests that use the client directly."""

import time
from contextlib import contextmanager

from dg_lsp.backends.remote.client import RemoteModel
from dg_lsp.backends.remote.dialects import RemoteAnswer
from dg_lsp.settings import RemoteSettings


@contextmanager
def remote_models():
    """Opens models with `open(url, pause_seconds=0.0, **settings)`, and closes them in the end."""
    models = []

    def call(url, pause_seconds=0.0, **settings):
        model = RemoteModel(RemoteSettings(url=url, **settings), pause_seconds=pause_seconds)
        models.append(model)
        return model

    yield call
    for model in models:
        model.close()


def last_answer(model, query, seconds=60.0):
    answer = RemoteAnswer()
    for answer in model.stream(query, time.monotonic() + seconds):  # noqa: B007
        pass
    return answer
