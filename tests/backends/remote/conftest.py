"""Models behind servers."""

import time
from contextlib import ExitStack, closing

import pytest

from dg_lsp.backends.remote.client import RemoteModel
from dg_lsp.backends.remote.dialects import RemoteAnswer
from dg_lsp.settings import RemoteSettings


@pytest.fixture
def model_of():
    """Opens models with `model_of(url, pause_seconds=0.0, **settings)`, and closes them in the end."""
    with ExitStack() as models:

        def call(url, pause_seconds=0.0, **settings):
            model = RemoteModel(RemoteSettings(url=url, **settings), pause_seconds=pause_seconds)
            return models.enter_context(closing(model))

        yield call


def last_answer(model, query, seconds=60.0):
    answer = RemoteAnswer()
    for answer in model.stream(query, time.monotonic() + seconds):  # noqa: B007
        pass
    return answer
