"""A server with a small model for completions and a large one for chats."""

from dataclasses import replace

import pytest
from chatty import HI, chatty
from http_server import GAP, choices, engine_of

from dg_lsp.backends.scripted import ScriptedDenoiser

PAIR = {"model": {"name": "small"}, "rewrite": {"model": "large"}}


def named(denoiser, name):
    denoiser.spec = replace(denoiser.spec, name=name)
    return denoiser


@pytest.fixture
def client(start):
    denoisers = {
        "small": named(ScriptedDenoiser("filled", num_slots=2, context_length=300), "small"),
        "large": named(chatty("answered", context_length=2000), "large"),
    }
    return start(open_engine=lambda settings: engine_of(denoisers[settings.model.name])(settings), **PAIR)


def test_chats_and_completions_have_their_own_model(client):
    completion = client.post("/infill", GAP).tree
    assert (completion["content"], completion["model"]) == ("filled", "small")
    assert client.post("/completion", {"prompt": "a"}).tree["model"] == "small"
    answer = client.post("/v1/chat/completions", HI).tree
    assert (answer["choices"][0]["message"]["content"], answer["model"]) == ("answered", "large")
    reply = client.post("/v1/chat/completions", {**HI, "stream": True, "diffusing": True})
    assert "answered" in "".join(one["delta"]["content"] for one in choices(reply))


def test_reports_are_about_completions_unless_they_name_the_other_model(client):
    assert [one["id"] for one in client.get("/v1/models").tree["data"]] == ["small", "large"]
    for query, name, size in (("", "small", 300), ("?model=small", "small", 300), ("?model=large", "large", 2000)):
        props = client.get(f"/props{query}").tree
        assert (props["model_alias"], props["default_generation_settings"]["n_ctx"]) == (name, size)
        assert {slot["n_ctx"] for slot in client.get(f"/slots{query}").tree} == {size}
        assert client.get(f"/memory{query}").tree["cache"]["tokens_at_most"] == size
    assert len(client.get("/slots").tree) == 2
    for path in ("/props", "/slots", "/memory"):
        reply = client.get(f"{path}?model=medium")
        assert (reply.status, "/v1/models" in reply.error["message"]) == (404, True)
