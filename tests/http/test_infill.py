"""`POST /infill`, as llama.vim and llama.vscode ask it. The bodies are what their code sends, byte for byte."""

import json
import re

import pytest

from dg_lsp.backends.scripted import MASK_SPEC, ScriptedDenoiser

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
LLAMA_VIM_WARM_UP = (
    rb'{"id_slot":0,"input_prefix":"","input_suffix":"","input_extra":[{"text":"import os\n","time":[123,456],'
    rb'"filename":"a.py"}],"prompt":"","n_predict":0,"temperature":0.0,"stop":[],"n_indent":0,"samplers":[],'
    rb'"stream":false,"cache_prompt":true,"t_max_prompt_ms":1,"t_max_predict_ms":1,"response_fields":[""],"model":""}'
)
LLAMA_VSCODE = (
    rb'{"id_slot":0,"input_prefix":"def add(a, b):\n","input_suffix":"\n","input_extra":[{"text":"x = 1\n",'
    rb'"time":1763750000000,"filename":"b.py"}],"prompt":"    return ","n_predict":128,"n_cmpl":3,"top_k":40,'
    rb'"top_p":0.99,"stream":false,"samplers":["top_k","top_p","infill"],"cache_prompt":true,"n_indent":4,'
    rb'"t_max_prompt_ms":500,"t_max_predict_ms":50000,"lora":[{"id":0,"scale":0.5}],"model":"m"}'
)
GAP = {"input_prefix": "def total(items):\n", "prompt": "    return ", "input_suffix": "\n"}


def accepted_by_llama_vim(body):
    """Its own two rules over the raw body: one line, and `"content":"` without a blank after the colon."""
    text = body.decode()
    return "\n" not in text and re.search(r'"content"\s*:"', text) is not None and not text.startswith("[")


def test_llama_vims_request_gets_what_it_reads(ask):
    reply = ask("    return a + b", "/infill", LLAMA_VIM)
    assert reply.status == 200
    assert reply.headers["content-type"] == "application/json"
    assert accepted_by_llama_vim(reply.body)
    assert list(reply.tree) == [
        "content",
        *(f"timings/prompt_{name}" for name in ("n", "ms", "per_token_ms", "per_second")),
        *(f"timings/predicted_{name}" for name in ("n", "ms", "per_token_ms", "per_second")),
        "truncated",
        "tokens_cached",
    ]
    assert reply.tree["content"] == "    return a + b"
    assert reply.tree["timings/predicted_n"] == len("    return a + b") + 1
    assert reply.tree["truncated"] is False


def test_with_its_own_deadline_llama_vim_gets_a_fill_or_an_error_that_it_does_not_keep(ask):
    reply = ask("    return a + b", "/infill", LLAMA_VIM.replace(b"25000", b"250"))
    assert reply.status in (200, 504)
    assert accepted_by_llama_vim(reply.body) == (reply.status == 200)


def test_the_model_is_shown_what_stands_around_the_cursor(ask):
    seen = []

    def fill(prefix, suffix):
        seen.append((prefix, suffix))
        return "x"

    ask(fill, "/infill", {"input_prefix": "a = 1\n", "prompt": "b = ", "input_suffix": "\nc = 3\n"})
    assert set(seen) == {("a = 1\nb = ", "\nc = 3\n")}


def test_llama_vims_bearer_of_nothing_is_none(start):
    client = start(ScriptedDenoiser("x"))
    for bearer in ("Bearer k", "Bearer ", "Bearer"):
        assert client.post("/infill", LLAMA_VIM, Authorization=bearer).status == 200


def test_llama_vims_warm_up_is_answered_and_asks_nothing_of_the_model(start):
    denoiser = ScriptedDenoiser("x")
    reply = start(denoiser).post("/infill", LLAMA_VIM_WARM_UP)
    assert (reply.status, reply.body) == (200, b"{}")
    assert denoiser.num_steps == 0


def test_a_warm_up_readies_the_cache_for_what_comes(start):
    denoiser = ScriptedDenoiser("x")
    client = start(denoiser)
    client.post("/infill", {**GAP, "n_predict": 0, "t_max_predict_ms": 1})
    assert denoiser.num_steps == 0
    num_warm = denoiser.num_prefilled
    assert num_warm > 0
    timings = client.post("/infill", GAP).tree["timings"]
    assert (timings["prompt_n"], timings["cache_n"]) == (0, num_warm)


def test_llama_vscodes_request_gets_an_array(ask):
    reply = ask(("first", "other", "third"), "/infill", LLAMA_VSCODE)
    assert reply.status == 200
    assert [one["content"] for one in reply.tree] == ["first", "other", "third"]
    assert [one["index"] for one in reply.tree] == [0, 1, 2]


@pytest.mark.parametrize("more", [{}, {"n_cmpl": 1}, {"n_cmpl": None}])
def test_one_candidate_is_an_object(ask, more):
    reply = ask("total", "/infill", {**GAP, **more})
    assert reply.tree["content"] == "total"
    assert accepted_by_llama_vim(reply.body)


def test_the_whole_reply_is_llama_cpps_and_tells_of_diffusion(start):
    tree = start(ScriptedDenoiser("items[0]", tokens_per_step=1)).post("/infill", {**GAP, "seed": 3}).tree
    assert list(tree) == [
        *("index", "content", "tokens", "id_slot", "stop", "model", "tokens_predicted", "tokens_evaluated"),
        *("generation_settings", "prompt", "has_new_line", "truncated", "stop_type", "stopping_word"),
        *("tokens_cached", "timings", "diffusion"),
    ]
    assert (tree["stop"], tree["stop_type"], tree["has_new_line"]) == (True, "eos", False)
    assert tree["generation_settings"]["seed"] == 3
    assert tree["tokens_predicted"] == len("items[0]") + 1
    diffusion = tree["diffusion"]
    assert diffusion["steps"] == len("items[0]") + 1
    assert diffusion["tokens_per_forward"] == 1.0
    assert diffusion["blocks"] * diffusion["canvas_length"] == diffusion["canvas_tokens"] == 16
    assert diffusion["ms_per_step"] > 0
    assert diffusion["decoder"] == "diffusion"


def test_a_fill_longer_than_a_canvas_goes_on_in_further_ones(ask):
    text = "\n".join(f"    value_{number} = {number}" for number in range(6))
    body = {"input_prefix": "def f():\n", "input_suffix": "\n", "n_predict": 256}
    tree = ask(text, "/infill", body).tree
    assert tree["content"] == text
    assert tree["diffusion"]["blocks"] > 1


def test_n_predict_bounds_the_answer(ask):
    tree = ask("abcdefghijklmnop", "/infill", {**GAP, "n_predict": 8}).tree
    assert tree["content"] == "abcdefghijklmnop"[: len(tree["content"])]
    assert len(tree["content"]) < 16 or tree["tokens_predicted"] == 16
    assert tree["stop_type"] == "limit"


def test_stops_are_no_part_of_the_answer(ask):
    tree = ask("alpha; beta", "/infill", {**GAP, "stop": ["beta", ";"]}).tree
    assert (tree["content"], tree["stop_type"], tree["stopping_word"]) == ("alpha", "word", ";")


def test_lines_left_of_the_margin_end_the_answer(ask):
    body = {"input_prefix": "class A:\n    def f(self):\n", "input_suffix": "\n"}
    fill = "        a = 1\n\n        b = 2\n    c = 3"
    assert ask(fill, "/infill", {**body, "n_indent": 8}).tree["content"] == "        a = 1\n\n        b = 2"


def test_a_stream_says_the_text_and_then_the_rest(ask):
    first, last = map(json.loads, ask("total", "/infill", {**GAP, "stream": True}).events)
    assert (first["content"], first["stop"]) == ("total", False)
    assert (last["content"], last["stop"]) == ("", True)
    assert last["timings"]["predicted_n"] == len("total") + 1


def test_nothing_worth_showing_is_an_empty_completion(ask):
    reply = ask("", "/infill", GAP)
    assert (reply.status, reply.tree["content"]) == (200, "")


def test_any_text_goes_there_and_back(ask):
    reply = ask('"é😋\u2028\\"', "/infill", {**GAP, "input_prefix": "# é😋\u2028\n"})
    assert reply.tree["content"] == "" or "😋" in reply.body.decode()
    assert b"\n" not in reply.body


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"input_prefix": 1}, "input_prefix"),
        ({"input_suffix": []}, "input_suffix"),
        ({"prompt": {}}, "prompt"),
        ({"n_predict": "8"}, "n_predict"),
        ({"n_predict": 1.5}, "n_predict"),
        ({"n_predict": True}, "n_predict"),
        ({"stream": 1}, "stream"),
        ({"stop": [1]}, "stop"),
        ({"seed": "x"}, "seed"),
        ({"response_fields": 3}, "response_fields"),
        ({"input_extra": {}}, "input_extra"),
        ({"input_extra": ["text"]}, "input_extra"),
        ({"input_extra": [{"text": "a"}, {"text": 1}]}, "input_extra[1].text"),
        ({"input_extra": [{"filename": "a.py"}]}, "input_extra[0].text"),
        ({"input_extra": [{"text": "a", "filename": 1}]}, "input_extra[0].filename"),
        ({"n_cmpl": 0}, "n_cmpl"),
        ({"n_indent": -1}, "n_indent"),
        ({"t_max_predict_ms": "1"}, "t_max_predict_ms"),
    ],
)
def test_a_wrong_type_is_refused_by_its_fields_name(module_client, more, field):
    reply = module_client.post("/infill", {**GAP, **more})
    assert reply.status == 400
    assert reply.error["param"] == field
    assert reply.error["message"].startswith(f"Field '{field}': ")
    assert reply.error["type"] == "invalid_request_error"


def test_llama_vscode_shows_what_is_wrong_with_n_cmpl(module_client):
    message = module_client.post("/infill", {**GAP, "n_cmpl": 99}).error["message"]
    assert message == "Field 'n_cmpl': Value must be between 1 <= value <= 8, but got 99"


def test_chunks_without_a_text_are_told_in_llama_cpps_words(module_client):
    message = module_client.post("/infill", {**GAP, "input_extra": [{}]}).error["message"]
    assert 'extra_context chunk must contain a "text" field with a string value' in message


@pytest.mark.parametrize(
    "more",
    [
        {"nonsense": 1},
        {"n_predict": None, "seed": None, "stop": None, "input_extra": None},
        {"seed": -1},
        {"n_predict": -1},
        {"n_predict": 8.0},
        {"stop": "x"},
        {"lora": [{"id": 0, "scale": 0.5}], "samplers": ["infill"], "id_slot": 7},
    ],
)
def test_what_nobody_reads_is_tolerated(module_client, more):
    assert module_client.post("/infill", {**GAP, **more}).status == 200


def test_a_model_that_is_asked_for_more_than_it_can_says_so(start):
    from dataclasses import replace

    client = start(ScriptedDenoiser("x", spec=replace(MASK_SPEC, canvas_lengths=(8,))), fill={"canvas_length": 16})
    reply = client.post("/infill", GAP)
    assert (reply.status, reply.error["type"]) == (400, "invalid_request_error")
