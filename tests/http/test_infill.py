"""`POST /infill`, with the bodies that llama.vim and llama.vscode send, byte for byte."""

import json
from dataclasses import replace

import pytest
from http_server import wait_until
from plugins import llama_vims

from dg_lsp.backends.scripted import MASK_SPEC, ScriptedDenoiser
from dg_lsp.settings import CompletionSettings, Settings

# captured from llama.vim a1c8e6e under Vim 9.0, where `t_max_predict_ms` is 250; its numbers are Vim's own
LLAMA_VIM = (
    rb'{"id_slot":0,"input_prefix":"import os\n\ndef add(a, b):\n",'
    rb'"input_suffix":"\n\ndef sub(a, b):\n    return a - b\n","input_extra":[],"prompt":"","n_predict":128,"stop":[],'
    rb'"n_indent":0,"top_k":40,"top_p":0.9,"samplers":["top_k","top_p","infill"],"stream":false,"cache_prompt":true,'
    rb'"t_max_prompt_ms":500,"t_max_predict_ms":25000,"response_fields":["content","timings/prompt_n",'
    rb'"timings/prompt_ms","timings/prompt_per_token_ms","timings/prompt_per_second","timings/predicted_n",'
    rb'"timings/predicted_ms","timings/predicted_per_token_ms","timings/predicted_per_second","truncated",'
    rb'"tokens_cached"],"model":""}'
)
LLAMA_VSCODE = (
    rb'{"id_slot":0,"input_prefix":"def add(a, b):\n","input_suffix":"\n","input_extra":[{"text":"x = 1\n",'
    rb'"time":1763750000000,"filename":"b.py"}],"prompt":"    return ","n_predict":128,"n_cmpl":3,"top_k":40,'
    rb'"top_p":0.99,"stream":false,"samplers":["top_k","top_p","infill"],"cache_prompt":true,"n_indent":4,'
    rb'"t_max_prompt_ms":500,"t_max_predict_ms":50000,"lora":[{"id":0,"scale":0.5}],"model":"m"}'
)
GAP = {"input_prefix": "def total(items):\n", "prompt": "    return ", "input_suffix": "\n"}


def test_llama_vims_request_returns_the_fields_it_selects(complete):
    reply = complete("    return a + b", "/infill", LLAMA_VIM)
    assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
    assert llama_vims(reply) == "    return a + b"
    assert list(reply.tree) == [
        "content",
        *(f"timings/prompt_{name}" for name in ("n", "ms", "per_token_ms", "per_second")),
        *(f"timings/predicted_{name}" for name in ("n", "ms", "per_token_ms", "per_second")),
        "truncated",
        "tokens_cached",
    ]
    assert reply.tree["timings/predicted_n"] == len("    return a + b") + 1
    assert reply.tree["truncated"] is False


def test_a_warm_up_fills_the_prompt_cache(start):
    denoiser = ScriptedDenoiser("x")
    client = start(denoiser)
    client.post("/infill", {**GAP, "n_predict": 0, "t_max_predict_ms": 1})
    assert denoiser.num_steps == 0
    wait_until(lambda: denoiser.num_prefilled > 0)
    num_warm = denoiser.num_prefilled
    timings = client.post("/infill", GAP).tree["timings"]
    assert (timings["prompt_n"], timings["cache_n"]) == (0, num_warm)


def test_llama_vscodes_request_returns_an_array(complete):
    reply = complete(("first", "other", "third"), "/infill", LLAMA_VSCODE)
    assert [(one["index"], one["content"]) for one in reply.tree] == [(0, "first"), (1, "other"), (2, "third")]


def test_a_response_has_llama_cpps_fields_and_diffusion_statistics(start):
    tree = start(ScriptedDenoiser("items[0]", tokens_per_step=1)).post("/infill", {**GAP, "seed": 3}).tree
    assert list(tree) == [
        *("index", "content", "tokens", "id_slot", "stop", "model", "tokens_predicted", "tokens_evaluated"),
        *("generation_settings", "prompt", "has_new_line", "truncated", "stop_type", "stopping_word"),
        *("tokens_cached", "timings", "diffusion"),
    ]
    assert (tree["stop"], tree["stop_type"], tree["has_new_line"]) == (True, "eos", False)
    assert tree["generation_settings"] == {"n_predict": -1, "n_cmpl": 1, "n_indent": 0, "seed": 3, "stop": []}
    assert tree["tokens_predicted"] == len("items[0]") + 1
    diffusion = tree["diffusion"]
    assert diffusion["steps"] == len("items[0]") + 1
    assert diffusion["tokens_per_forward"] == 1.0
    assert diffusion["blocks"] * diffusion["canvas_length"] == diffusion["canvas_tokens"] == 16
    assert diffusion["ms_per_step"] > 0
    assert diffusion["decoder"] == "diffusion"


def test_a_completion_longer_than_a_canvas_uses_several(complete):
    text = "\n".join(f"    value_{number} = {number}" for number in range(6))
    tree = complete(text, "/infill", {"input_prefix": "def f():\n", "input_suffix": "\n", "n_predict": 256}).tree
    assert tree["content"] == text
    assert tree["diffusion"]["blocks"] > 1


def test_n_predict_limits_the_tokens(complete):
    tree = complete("abcdefghijklmnop", "/infill", {**GAP, "n_predict": 8}).tree
    assert tree["content"] == "abcdefghijklmnop"[: len(tree["content"])]
    assert len(tree["content"]) < 16 or tree["tokens_predicted"] == 16
    assert tree["stop_type"] == "limit"


def test_a_completion_ends_before_the_first_stop(complete):
    tree = complete("alpha; beta", "/infill", {**GAP, "stop": ["beta", ";"]}).tree
    assert (tree["content"], tree["stop_type"], tree["stopping_word"]) == ("alpha", "word", ";")


def test_a_completion_ends_before_a_line_left_of_n_indent(complete):
    body = {"input_prefix": "class A:\n    def f(self):\n", "input_suffix": "\n"}
    fill = "        a = 1\n\n        b = 2\n    c = 3"
    assert complete(fill, "/infill", {**body, "n_indent": 8}).tree["content"] == "        a = 1\n\n        b = 2"


def test_a_stream_has_one_event_with_the_text_and_one_with_the_rest(complete):
    first, last = map(json.loads, complete("total", "/infill", {**GAP, "stream": True}).events)
    assert (first["content"], first["stop"]) == ("total", False)
    assert (last["content"], last["stop"]) == ("", True)
    assert last["timings"]["predicted_n"] == len("total") + 1


def test_no_candidate_is_an_empty_completion(complete):
    reply = complete("", "/infill", GAP)
    assert (reply.status, reply.tree["content"]) == (200, "")


def test_the_response_is_one_line_of_utf_8(complete):
    reply = complete("'é😋'", "/infill", {**GAP, "input_prefix": "# é😋\u2028\n"})
    assert reply.tree["content"] == "'é😋'"
    assert b"\n" not in reply.body
    assert "😋".encode() in reply.body


@pytest.mark.parametrize(
    "more",
    [
        {"nonsense": 1},
        {"n_predict": None, "seed": None, "stop": None, "input_extra": None},
        {"seed": -1},
        {"seed": 2**64},
        {"n_predict": -1},
        {"n_predict": 8.0},
        {"stop": "x"},
        {"lora": [{"id": 0, "scale": 0.5}], "samplers": ["infill"], "id_slot": 7},
    ],
)
def test_unknown_fields_nulls_and_whole_floats_are_accepted(module_client, more):
    assert module_client.post("/infill", {**GAP, **more}).status == 200


def test_a_request_that_the_model_cannot_take_is_refused(start, monkeypatch):
    settings = Settings(completion=CompletionSettings(canvas_length=16))
    monkeypatch.setattr("http_server.settings_of", lambda _tree: settings)
    client = start(ScriptedDenoiser("x", spec=replace(MASK_SPEC, canvas_lengths=(8,))))
    reply = client.post("/infill", GAP)
    assert (reply.status, reply.error["type"]) == (400, "invalid_request_error")
