"""Sampler options under the names of llama.cpp's DiffusionGemma server, and the thoughts of an answer."""

import pytest
from chatty import HI, SPECIALS, chatty
from http_server import GAP, choices
from scripted import END_ID, ScriptedDenoiser

THINKING = {"chat_template_kwargs": {"enable_thinking": True}}


def test_fields_change_how_a_canvas_is_denoised(start):
    client = start(ScriptedDenoiser("first + second"))
    tree = client.post("/infill", {**GAP, "canvas_length": 16, "n_denoise_steps": 1}).tree
    assert (tree["diffusion"]["canvas_length"], tree["diffusion"]["steps"]) == (16, 1)
    tree = client.post("/infill", GAP).tree
    assert (tree["diffusion"]["canvas_length"], tree["diffusion"]["steps"]) == (8, 4)
    text = {"prompt": "a = ", "max_tokens": 20, "canvas_length": 16}
    assert client.post("/v1/completions", text).tree["diffusion"]["canvas_length"] == 16
    chat = start(chatty("One line."))
    assert chat.post("/v1/chat/completions", {**HI, "canvas_length": 16}).tree["diffusion"]["canvas_length"] == 16


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("entropy_bound", 0.5, "does not apply to scripted, which denoises masks"),
        ("canvas_length", 65, "at most 64"),
        ("temperature_min", 0, "greater than or equal to 0.01"),
        ("chat_template_kwargs", {"enable_thinking": True}, "does not apply to code"),
    ],
)
def test_a_field_that_does_not_apply_or_is_out_of_bounds_is_refused_by_name(module_client, field, value, problem):
    reply = module_client.post("/infill", {**GAP, field: value})
    assert reply.status == 400
    assert reply.error["param"].startswith(field)
    assert problem in reply.error["message"]


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_thought_is_returned_beside_the_answer_and_only_the_answer_ends_at_a_stop(start, is_streamed):
    denoiser = chatty("<think>\nWhy\n\nnot?\n</think>\n\nBecause.\n\nAnd so on.")
    denoiser.tokenizer.special = {**SPECIALS, "<|think|>": END_ID}.get
    reply = start(denoiser).post("/v1/chat/completions", {**HI, **THINKING, "stop": ["\n\n"], "stream": is_streamed})
    parts = choices(reply) if is_streamed else reply.tree["choices"]
    messages = [part["delta" if is_streamed else "message"] for part in parts]
    assert "".join(message.get("reasoning_content", "") for message in messages) == "Why\n\nnot?"
    assert "".join(message["content"] for message in messages) == "Because."
    assert parts[-1]["finish_reason"] == "stop"
