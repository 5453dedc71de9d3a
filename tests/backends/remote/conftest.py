"""Models behind servers."""

import time
from contextlib import ExitStack, closing

import pytest

from dg_lsp.backends.remote import client
from dg_lsp.backends.remote.client import RemoteModel
from dg_lsp.backends.remote.dialects import RemoteAnswer
from dg_lsp.settings import RemoteSettings


@pytest.fixture
def model_of(monkeypatch):
    """Opens models with `model_of(url, **settings)`, and closes them in the end. A server that fails gets no pause."""
    monkeypatch.setattr(client, "PAUSE_SECONDS", 0.0)
    with ExitStack() as models:
        yield lambda url, **settings: models.enter_context(closing(RemoteModel(RemoteSettings(url=url, **settings))))


def last_answer(model, query, seconds=60.0):
    answer = RemoteAnswer()
    for answer in model.stream(query, time.monotonic() + seconds):  # noqa: B007
        pass
    return answer
