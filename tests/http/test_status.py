"""Endpoints that report on the server, also with a second model for chats."""

from dataclasses import replace

from chatty import HI, chatty
from http_server import GAP, engine_of, wait_until
from scripted import ScriptedDenoiser


def test_the_slot_of_a_running_request_is_processing(start, gated, occupy):
    denoiser = gated("x", num_slots=3, context_length=400)
    client = start(denoiser)
    with occupy(denoiser, client):
        slots = client.get("/slots").tree
        assert slots == [{"id": number, "n_ctx": 400, "is_processing": number == 0} for number in range(3)]
    wait_until(lambda: not any(slot["is_processing"] for slot in client.get("/slots").tree))
    reply = client.post("/infill", {**GAP, "id_slot": 2}).tree
    assert reply["id_slot"] == 0, "the slot that holds the prompt, whatever slot the client names"


def named(denoiser, name):
    denoiser.spec = replace(denoiser.spec, name=name)
    return denoiser


def test_chats_have_a_model_of_their_own_and_the_status_is_that_of_the_model_of_completions(start):
    denoisers = {
        "small": named(ScriptedDenoiser("filled", num_slots=2, context_length=300), "small"),
        "large": named(chatty("answered", context_length=2000), "large"),
    }
    options = {"model": {"name": "small"}, "rewrite": {"model": "large"}}
    client = start(open_engine=lambda settings: engine_of(denoisers[settings.model.name])(settings), **options)
    completion = client.post("/infill", GAP).tree
    assert (completion["content"], completion["model"]) == ("filled", "small")
    assert client.post("/completion", {"prompt": "a"}).tree["model"] == "small"
    answer = client.post("/v1/chat/completions", HI).tree
    assert (answer["choices"][0]["message"]["content"], answer["model"]) == ("answered", "large")
    models = client.get("/v1/models").tree
    assert [(model["id"], model["object"]) for model in models["data"]] == [("small", "model"), ("large", "model")]
    assert client.get("/models").tree == models
    assert client.get("/v1/health").tree == {"status": "ok"}
    props = client.get("/props").tree
    assert (props["model_alias"], props["default_generation_settings"]["n_ctx"]) == ("small", 300)
    assert (props["total_slots"], props["is_sleeping"]) == (2, False)
    assert [slot["n_ctx"] for slot in client.get("/slots").tree] == [300, 300]
