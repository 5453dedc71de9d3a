"""`POST /infill`: candidates, limits, the prompt cache and the fields of a response."""

import json

import pytest
from http_server import OPERATOR, mercury, wait_until
from scripted import ScriptedDenoiser

GAP = {"input_prefix": "def total(items):\n", "prompt": "    return ", "input_suffix": "\n"}


def test_selected_fields_have_their_paths_as_names(complete):
    selected = ["content", "timings/predicted_n", "nowhere", "timings/nowhere", "truncated"]
    tree = complete("total", "/infill", {**GAP, "response_fields": selected}).tree
    assert tree == {"content": "total", "timings/predicted_n": 6, "truncated": False}


def test_llama_vims_warm_up_runs_no_step_and_selects_no_field(start):
    denoiser = ScriptedDenoiser("x")
    # captured from llama.vim a1c8e6e under Vim 9.0
    body = (
        b'{"id_slot":0,"input_prefix":"","input_suffix":"","input_extra":[{"text":"import os\\n","time":[123,456],'
        b'"filename":"a.py"}],"prompt":"","n_predict":0,"temperature":0.0,"stop":[],"n_indent":0,"samplers":[],'
        b'"stream":false,"cache_prompt":true,"t_max_prompt_ms":1,"t_max_predict_ms":1,"response_fields":[""],"model":""}'
    )
    reply = start(denoiser).post("/infill", body)
    assert (reply.status, reply.body) == (200, b"{}")
    assert denoiser.num_steps == 0


@pytest.mark.parametrize(
    ("path", "body", "warm_up"),
    [("/infill", GAP, {"n_predict": 0, "t_max_predict_ms": 1}), ("/completion", {"prompt": "a"}, {"n_predict": 0})],
)
def test_a_warm_up_fills_the_prompt_cache(start, path, body, warm_up):
    denoiser = ScriptedDenoiser("x")
    client = start(denoiser, rules=OPERATOR)
    assert client.post(path, {**body, **warm_up}).tree["content"] == ""
    assert denoiser.num_steps == 0
    wait_until(lambda: denoiser.num_prefilled > 0)
    num_warm = denoiser.num_prefilled
    timings = client.post(path, body).tree["timings"]
    assert (timings["prompt_n"], timings["cache_n"]) == (0, num_warm)


def test_a_response_has_llama_cpps_fields_and_diffusion_statistics(start):
    tree = start(ScriptedDenoiser("items[0]", tokens_per_step=1)).post("/infill", {**GAP, "seed": 3}).tree
    assert list(tree) == [
        *("index", "content", "id_slot", "stop", "model", "tokens_predicted", "tokens_evaluated", "truncated"),
        *("stop_type", "stopping_word", "tokens_cached", "timings", "diffusion"),
    ]
    assert (tree["stop"], tree["stop_type"]) == (True, "eos")
    num_tokens = len("items[0]") + 1
    assert tree["tokens_predicted"] == num_tokens
    assert tree["diffusion"] == {
        "decoder": "diffusion",
        "canvas_length": 8,
        "blocks": 2,
        "steps": num_tokens,
        "canvas_tokens": 16,
        "tokens_per_forward": 1.0,
    }
    timings = tree["timings"]["diffusion"]
    assert list(timings) == [
        *("n_blocks", "n_steps", "canvas_tokens", "steps_per_second", "ms_per_step", "canvas_tokens_per_second")
    ]
    assert (timings["n_blocks"], timings["n_steps"], timings["canvas_tokens"]) == (2, num_tokens, 16)
    assert timings["ms_per_step"] > 0


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_unknown_fields_nulls_whole_floats_and_any_seed_are_accepted(module_client, seed):
    fields = {"nonsense": 1, "temperature": None, "n_predict": 8.0, "stop": "x", "seed": seed}
    assert module_client.post("/infill", {**GAP, **fields}).status == 200


BODIES = {
    "/infill": {"input_prefix": "x = ", "input_suffix": "\n", "language": "python"},
    "/v1/completions": {"prompt": "x = ", "suffix": "\n", "language": "python"},
    "/v1/edit/completions": {"messages": [{"role": "user", "content": mercury("a.py", "x = <|cursor|>")}]},
}


@pytest.mark.parametrize(("fill", "reason"), [("", "empty"), ("= =", "syntax-error"), ("total", "low-confidence")])
@pytest.mark.parametrize("path", BODIES)
def test_an_empty_fill_has_its_reason(start, path, fill, reason):
    if path == "/v1/edit/completions" and reason == "low-confidence":
        reason = None  # the user has requested the edit
    client = start(ScriptedDenoiser(fill), completion={"early_stop_ms": 0, "deadline_ms": 1e6, "min_confidence": 0.999})
    whole = client.post(path, BODIES[path])
    streamed = client.post(path, {**BODIES[path], "stream": True})
    last = json.loads([event for event in streamed.events if event != "[DONE]"][-1])
    if path != "/v1/edit/completions":
        assert whole.tree["dg_lsp"] == last["dg_lsp"] == {"reason": reason}
    assert whole.headers.get("dg-lsp-reason") == streamed.headers.get("dg-lsp-reason") == reason
