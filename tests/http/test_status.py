"""Endpoints that report on the server."""

from http_server import OPERATOR, TIMEOUT, wait_until

from dg_lsp.backends.scripted import ScriptedDenoiser
from dg_lsp.diffusion.denoiser import DeviceMemory, Footprint


def test_models_and_props_describe_the_model(module_client):
    [model] = module_client.get("/v1/models").tree["data"]
    assert (model["id"], model["object"], model["meta"]["noise"]) == ("scripted", "model", "mask")
    assert module_client.get("/models").tree == module_client.get("/v1/models").tree
    assert module_client.get("/v1/health").tree == {"status": "ok"}
    props = module_client.get("/props").tree
    assert props["default_generation_settings"]["n_ctx"] == 4096
    params = props["default_generation_settings"]["params"]
    assert (params["n_denoise_steps"], params["confidence_threshold"], params["canvas_length"]) == (128, 0.9, 64)
    assert (props["total_slots"], props["model_alias"]) == (4, "scripted")


def test_the_slot_of_a_running_request_is_processing(start, gated, pool):
    denoiser = gated("x", num_slots=3, context_length=400)
    client = start(denoiser, rules=OPERATOR)
    reply = pool.submit(client.post, "/infill", {"input_prefix": "a = ", "id_slot": 1})
    assert denoiser.is_inside.wait(TIMEOUT)
    slots = client.get("/slots").tree
    assert [(one["id"], one["is_processing"]) for one in slots] == [(0, False), (1, True), (2, False)]
    assert [one["n_ctx"] for one in slots] == [400] * 3
    assert slots[1]["n_prompt_tokens"] > slots[0]["n_prompt_tokens"] == 0
    denoiser.go_on.set()
    assert reply.result(TIMEOUT).tree["id_slot"] == 1
    wait_until(lambda: not any(one["is_processing"] for one in client.get("/slots").tree))


def test_memory_has_process_and_cache(start):
    client = start(ScriptedDenoiser("x"), rules=OPERATOR)
    client.post("/infill", {"input_prefix": "a = "})
    memory = client.get("/memory").tree
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


def test_memory_has_devices_until_the_model_is_unloaded(start):
    memory = start(OnDevice("x"), rules=OPERATOR).get("/memory").tree
    assert memory["weights_bytes"] == 7
    assert memory["cache"] == {"bytes": 5, "tokens": 4, "tokens_used": 2, "tokens_at_most": 9}
    assert memory["devices"] == [
        {"name": "RTX", "free_bytes": 3, "total_bytes": 10},
        {"name": "silent", "free_bytes": None, "total_bytes": None},
    ]
    client = start(OnDevice("x"), model={"idle_seconds": 0.05})
    wait_until(lambda: client.get("/memory").tree["weights_bytes"] == 0)
    memory = client.get("/memory").tree
    assert memory["cache"]["bytes"] == 0
    assert memory["devices"] == []
