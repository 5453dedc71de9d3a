"""Endpoints that report on the server, also with a second model for chats."""

from dataclasses import replace

import pytest
from chatty import HI, chatty
from http_server import GAP, TIMEOUT, choices, engine_of, wait_until

from dg_lsp.backends.scripted import ScriptedDenoiser
from dg_lsp.diffusion.denoiser import DeviceMemory, Footprint


def test_models_and_props_describe_the_model(module_client):
    [model] = module_client.get("/v1/models").tree["data"]
    assert (model["id"], model["object"]) == ("scripted", "model")
    assert module_client.get("/models").tree == module_client.get("/v1/models").tree
    assert module_client.get("/v1/health").tree == {"status": "ok"}
    props = module_client.get("/props").tree
    assert props["default_generation_settings"]["n_ctx"] == 4096
    assert (props["total_slots"], props["model_alias"], props["is_sleeping"]) == (4, "scripted", False)


def test_the_slot_of_a_running_request_is_processing(start, gated, pool):
    denoiser = gated("x", num_slots=3, context_length=400)
    client = start(denoiser)
    reply = pool.submit(client.post, "/infill", {"input_prefix": "a = ", "id_slot": 1})
    assert denoiser.is_inside.wait(TIMEOUT)
    slots = client.get("/slots").tree
    assert slots == [{"id": number, "n_ctx": 400, "is_processing": number == 1} for number in range(3)]
    denoiser.go_on.set()
    assert reply.result(TIMEOUT).tree["id_slot"] == 1
    wait_until(lambda: not any(slot["is_processing"] for slot in client.get("/slots").tree))


class OnDevice(ScriptedDenoiser):
    """Reports two GPUs."""

    @property
    def footprint(self):
        cards = (DeviceMemory("RTX", 3, 10), DeviceMemory("silent", 0, 0))
        return Footprint(weights_bytes=7, cache_bytes=5, cache_cells=4, cache_limit=9, cache_used=2, devices=cards)


def test_memory_has_the_process_and_the_model_until_it_is_unloaded(start):
    memory = start(OnDevice("x")).get("/memory").tree
    assert list(memory) == ["resident_bytes", "peak_bytes", "free_bytes", "weights_bytes", "cache", "devices"]
    assert all(memory[name] is None or memory[name] > 10_000_000 for name in ("resident_bytes", "peak_bytes"))
    assert memory["free_bytes"] > 10_000_000
    assert memory["weights_bytes"] == 7
    assert memory["cache"] == {"bytes": 5, "tokens": 4, "tokens_at_most": 9}
    assert memory["devices"] == [
        {"name": "RTX", "free_bytes": 3, "total_bytes": 10},
        {"name": "silent", "free_bytes": None, "total_bytes": None},
    ]
    client = start(OnDevice("x"), model={"idle_seconds": 0.05})
    wait_until(lambda: client.get("/memory").tree["weights_bytes"] == 0)
    memory = client.get("/memory").tree
    assert (memory["cache"]["bytes"], memory["devices"]) == (0, [])


def named(denoiser, name):
    denoiser.spec = replace(denoiser.spec, name=name)
    return denoiser


@pytest.fixture
def pair(start):
    """A server with a small model for completions and a large one for chats."""
    denoisers = {
        "small": named(ScriptedDenoiser("filled", num_slots=2, context_length=300), "small"),
        "large": named(chatty("answered", context_length=2000), "large"),
    }
    options = {"model": {"name": "small"}, "rewrite": {"model": "large"}}
    return start(open_engine=lambda settings: engine_of(denoisers[settings.model.name])(settings), **options)


def test_chats_and_completions_have_their_own_model(pair):
    completion = pair.post("/infill", GAP).tree
    assert (completion["content"], completion["model"]) == ("filled", "small")
    assert pair.post("/completion", {"prompt": "a"}).tree["model"] == "small"
    answer = pair.post("/v1/chat/completions", HI).tree
    assert (answer["choices"][0]["message"]["content"], answer["model"]) == ("answered", "large")
    reply = pair.post("/v1/chat/completions", {**HI, "stream": True, "diffusing": True})
    assert "answered" in "".join(choice["delta"]["content"] for choice in choices(reply))


def test_reports_are_about_the_model_of_completions(pair):
    assert [model["id"] for model in pair.get("/v1/models").tree["data"]] == ["small", "large"]
    props = pair.get("/props").tree
    assert (props["model_alias"], props["default_generation_settings"]["n_ctx"]) == ("small", 300)
    assert [slot["n_ctx"] for slot in pair.get("/slots").tree] == [300, 300]
    assert pair.get("/memory").tree["cache"]["tokens_at_most"] == 300
