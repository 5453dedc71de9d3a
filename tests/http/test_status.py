"""Endpoints that report on the server."""

from concurrent.futures import ThreadPoolExecutor

from http_server import wait_until

from dg_lsp.backends.scripted import ScriptedDenoiser
from dg_lsp.diffusion.denoiser import DeviceMemory, Footprint


def test_models_lists_the_model(module_client):
    [model] = module_client.get("/v1/models").tree["data"]
    assert (model["id"], model["object"]) == ("scripted", "model")
    assert model["meta"]["noise"] == "mask"


def test_props_has_the_prompt_length(module_client):
    props = module_client.get("/props").tree
    assert props["default_generation_settings"]["n_ctx"] > 0
    assert props["total_slots"] == 4
    assert props["model_alias"] == "scripted"


def test_slots_has_one_object_per_slot(start):
    client = start(ScriptedDenoiser("x"), model={"num_slots": 2})
    assert [(one["id"], one["is_processing"]) for one in client.get("/slots").tree] == [(0, False), (1, False)]


def test_one_slot_is_processing_while_the_model_runs(start, gated):
    denoiser = gated("x")
    client = start(denoiser)
    with ThreadPoolExecutor() as pool:
        reply = pool.submit(client.post, "/infill", {"input_prefix": "a = "})
        assert denoiser.is_inside.wait(30)
        assert sum(one["is_processing"] for one in client.get("/slots").tree) == 1
        denoiser.go_on.set()
        reply.result(30)


def test_memory_has_process_and_cache(module_client):
    module_client.post("/infill", {"input_prefix": "a = "})
    memory = module_client.get("/memory").tree
    assert list(memory) == ["resident_bytes", "peak_bytes", "free_bytes", "weights_bytes", "cache", "devices"]
    assert all(memory[name] is None or memory[name] > 10_000_000 for name in ("resident_bytes", "peak_bytes"))
    assert memory["free_bytes"] > 10_000_000
    cache = memory["cache"]
    assert 0 < cache["tokens_used"] <= cache["tokens"] <= cache["tokens_at_most"]
    assert cache["bytes"] > 0
    assert memory["devices"] == []


class OnDevice(ScriptedDenoiser):
    """Reports two GPUs."""

    @property
    def footprint(self):
        cards = (DeviceMemory("RTX", 3, 10), DeviceMemory("silent", 0, 0))
        return Footprint(weights_bytes=7, cache_bytes=5, cache_cells=4, cache_limit=9, cache_used=2, devices=cards)


def test_memory_has_devices(start):
    memory = start(OnDevice("x")).get("/memory").tree
    assert memory["weights_bytes"] == 7
    assert memory["cache"] == {"bytes": 5, "tokens": 4, "tokens_used": 2, "tokens_at_most": 9}
    assert memory["devices"] == [
        {"name": "RTX", "free_bytes": 3, "total_bytes": 10},
        {"name": "silent", "free_bytes": None, "total_bytes": None},
    ]


def test_an_unloaded_model_uses_no_memory(start):
    denoiser = OnDevice("x")
    client = start(denoiser, model={"idle_seconds": 0.05})
    wait_until(lambda: client.get("/memory").tree["weights_bytes"] == 0)
    memory = client.get("/memory").tree
    assert memory["cache"]["bytes"] == 0
    assert memory["devices"] == []
