"""The bundled model behind the API: its cache grows with the requests, and without memory for that it goes on."""

import attrs
import pytest

from dg_lsp.backends.llamacpp import context, memory_estimate
from dg_lsp.cli.loading import open_engine
from dg_lsp.errors import ModelMemoryError


def file(number):
    functions = (f"def f{number}_{line}(x):\n    return x + {line}\n\n" for line in range(60))
    return {"input_prefix": "".join(functions) + "def g(a):\n"}


FILES = [file(number) for number in range(4)]


def opened(settings):
    return open_engine(attrs.evolve(settings, runtime=attrs.evolve(settings.runtime, threads=1, gpu_layers=0)))


@pytest.fixture
def client(start, monkeypatch):
    monkeypatch.setattr(memory_estimate, "FIRST_TOKENS", 0)
    monkeypatch.setattr(memory_estimate, "_UBATCH", 256)
    return start(open_engine=opened, fill={"decoder": "autoregressive"})


def cache(client):
    return client.get("/memory").tree["cache"]


def test_the_cache_grows_with_the_files_that_are_asked_for(client):
    before = cache(client)
    for file in FILES:
        assert client.post("/infill", {**file, "n_predict": 4}).status == 200
    after = cache(client)
    assert before["tokens"] < after["tokens"] <= after["tokens_at_most"] == before["tokens_at_most"]
    assert before["bytes"] < after["bytes"]
    assert before["tokens_used"] == 0 < after["tokens_used"] <= after["tokens"]
    timings = client.post("/infill", {**FILES[0], "n_predict": 4}).tree["timings"]
    assert timings["prompt_n"] < 10 < timings["cache_n"], "what was kept is still there"


def test_what_there_is_no_memory_for_is_refused_and_the_model_goes_on(client, monkeypatch):
    small = {"input_prefix": "def g(a):\n", "n_predict": 4}
    text = client.post("/infill", small).tree["content"]
    with monkeypatch.context() as patch:

        def full(what, *_args, **_options):
            raise ModelMemoryError(f"{what} needs 9 GB")

        patch.setattr(context, "check_fits", full)
        refused = [client.post("/infill", {**FILES[0], "n_predict": 64}) for _ in range(2)]
        assert client.post("/infill", small).tree["content"] == text
    for reply in refused:
        assert reply.status == 503
        assert "needs 9 GB" in reply.error["message"]
        assert int(reply.headers["retry-after"]) > 0
    assert client.post("/infill", {**FILES[0], "n_predict": 4}).status == 200
