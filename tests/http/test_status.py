"""What the server says of itself."""

import time

from dg_lsp.backends.scripted import ScriptedDenoiser
from dg_lsp.diffusion.denoiser import DeviceMemory, Footprint


def test_the_model_is_listed(module_client):
    [model] = module_client.get("/v1/models").tree["data"]
    assert (model["id"], model["object"]) == ("scripted", "model")
    assert model["meta"]["noise"] == "mask"


def test_props_say_how_long_a_prompt_may_be(module_client):
    props = module_client.get("/props").tree
    assert props["default_generation_settings"]["n_ctx"] > 0
    assert props["total_slots"] == 4
    assert props["model_alias"] == "scripted"


def test_slots(start):
    client = start(ScriptedDenoiser("x"), runtime={"num_slots": 2})
    assert [(one["id"], one["is_processing"]) for one in client.get("/slots").tree] == [(0, False), (1, False)]


def test_a_slot_works_while_the_model_does(start, gated):
    from concurrent.futures import ThreadPoolExecutor

    denoiser = gated("x")
    client = start(denoiser)
    with ThreadPoolExecutor() as pool:
        reply = pool.submit(client.post, "/infill", {"input_prefix": "a = "})
        assert denoiser.is_inside.wait(30)
        assert sum(one["is_processing"] for one in client.get("/slots").tree) == 1
        denoiser.go_on.set()
        reply.result(30)


def test_memory(module_client):
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
    """Says that it is on a GPU."""

    @property
    def footprint(self):
        cards = (DeviceMemory("RTX", 3, 10), DeviceMemory("silent", 0, 0))
        return Footprint(weights_bytes=7, cache_bytes=5, cache_cells=4, cache_limit=9, cache_used=2, devices=cards)


def test_memory_of_devices(start):
    memory = start(OnDevice("x")).get("/memory").tree
    assert memory["weights_bytes"] == 7
    assert memory["cache"] == {"bytes": 5, "tokens": 4, "tokens_used": 2, "tokens_at_most": 9}
    assert memory["devices"] == [
        {"name": "RTX", "free_bytes": 3, "total_bytes": 10},
        {"name": "silent", "free_bytes": None, "total_bytes": None},
    ]


def test_a_model_that_was_given_up_holds_nothing(start):
    denoiser = OnDevice("x")
    client = start(denoiser, runtime={"idle_seconds": 0.05})
    end = time.monotonic() + 30
    while client.get("/memory").tree["weights_bytes"]:
        assert time.monotonic() < end
        time.sleep(0.01)
    memory = client.get("/memory").tree
    assert memory["cache"]["bytes"] == 0
    assert memory["devices"] == []


def test_metrics_count_requests_fills_and_steps(start):
    client = start(ScriptedDenoiser("x", tokens_per_step=1))
    client.post("/infill", {"input_prefix": "a = "})
    client.post("/infill", {"input_prefix": 1})
    client.get("/nowhere/never-a-label")
    reply = client.get("/metrics")
    text = reply.body.decode()
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    rows = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert rows['dg_lsp_requests_total{path="/infill",status="200"}'] == "1"
    assert rows['dg_lsp_requests_total{path="/infill",status="400"}'] == "1"
    assert rows['dg_lsp_requests_total{path="other",status="404"}'] == "1"
    assert rows['dg_lsp_request_seconds_count{path="/infill"}'] == "2"
    assert rows['dg_lsp_request_seconds_bucket{path="/infill",le="+Inf"}'] == "2"
    assert rows["dg_lsp_steps_total"] == "2"
    assert rows['dg_lsp_fills_total{decoder="diffusion",shown="yes"}'] == "1"
    assert "never-a-label" not in text
