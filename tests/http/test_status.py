"""What the server says of itself."""

from dg_lsp.backends.scripted import ScriptedDenoiser


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
    memory = module_client.get("/memory").tree
    assert list(memory) == ["resident_bytes", "peak_bytes"]
    assert all(value is None or value > 10_000_000 for value in memory.values())


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
    assert rows['dg_lsp_fills_total{plan="canvas",shown="yes"}'] == "1"
    assert "never-a-label" not in text
