"""`POST /completion`, and fields that llama.cpp's servers have: slots, tokens, canvases, options of the sampler."""

import pytest
from chatty import HI, chatty
from http_server import GAP
from scripted import UNIFORM_SPEC, ScriptedDenoiser

STORY = "Once upon a time there was a canvas of sixty-four tokens that went on in another one, and ended there."
BODY = {"prompt": "Once upon"}


def story(prefix, _suffix):
    return STORY.removeprefix(prefix)


@pytest.fixture(scope="module")
def client(module_start):
    return module_start(ScriptedDenoiser(story))


@pytest.mark.parametrize("path", ["/completion", "/completions"])
def test_a_text_goes_on_until_its_end(client, path):
    tree = client.post(path, BODY).tree
    assert (tree["content"], tree["stop"], tree["stop_type"]) == (STORY.removeprefix("Once upon"), True, "eos")
    assert (tree["tokens_predicted"], tree["tokens_evaluated"]) == (len(tree["content"]) + 1, len("Once upon"))
    assert tree["truncated"] is False
    assert 0 <= tree["id_slot"] < 4
    assert tree["tokens_cached"] == len("Once upon") + 64  # the last canvas is not in the cache
    assert (tree["diffusion"]["blocks"], tree["diffusion"]["canvas_tokens"]) == (2, 128)


def test_end_tokens_can_be_ignored_in_a_text_but_not_in_code(client):
    tree = client.post("/completion", {**BODY, "ignore_eos": True, "n_predict": 150}).tree
    assert (tree["content"], tree["tokens_predicted"], tree["stop_type"]) == (STORY[9:], 150, "limit")
    for path, body in (("/v1/fim/completions", {"prompt": "a = "}), ("/infill", GAP)):
        reply = client.post(path, {**body, "ignore_eos": True})
        assert (reply.status, reply.error["param"]) == (400, "ignore_eos")


def test_the_context_truncates(start):
    client = start(ScriptedDenoiser("x" * 500, context_length=64 + 100))
    tree = client.post("/completion", {"prompt": "a = ", "n_predict": 400}).tree
    assert (tree["truncated"], tree["stop_type"], tree["tokens_predicted"]) == (True, "limit", 128)
    tree = client.post("/v1/completions", {"prompt": "a = ", "max_tokens": 400}).tree
    assert tree["choices"][0]["finish_reason"] == "length"


def test_fields_change_how_a_canvas_is_denoised(start):
    client = start(ScriptedDenoiser("first + second"))
    tree = client.post("/infill", {**GAP, "canvas_length": 16, "n_denoise_steps": 1}).tree
    assert (tree["diffusion"]["canvas_length"], tree["diffusion"]["steps"]) == (16, 1)
    tree = client.post("/infill", GAP).tree
    assert (tree["diffusion"]["canvas_length"], tree["diffusion"]["steps"]) == (8, 4)
    chat = start(chatty("One line."))
    assert chat.post("/v1/chat/completions", {**HI, "canvas_length": 16}).tree["diffusion"]["canvas_length"] == 16


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("entropy_bound", 0.5, "does not apply to scripted, which denoises masks"),
        ("temperature_min", 0, "greater than or equal to 0.01"),
        ("chat_template_kwargs", {"enable_thinking": True}, "does not apply to code"),
    ],
)
def test_a_field_that_does_not_apply_or_is_out_of_bounds_is_refused_by_name(module_client, field, value, problem):
    reply = module_client.post("/infill", {**GAP, field: value})
    assert reply.status == 400
    assert reply.error["param"].startswith(field)
    assert problem in reply.error["message"]


def test_top_k_of_every_model(client, start):
    assert client.post("/completion", {**BODY, "top_k": 40, "n_predict": 4}).status == 200
    uniform = start(ScriptedDenoiser(story, spec=UNIFORM_SPEC))
    annealed = {"top_k_start": 256, "top_k_end": 16, "top_k_tail_correction": True}
    for options in (*({"top_k": size} for size in (-1, 0, 1, 64, 256, 1_000_000)), annealed):
        tree = uniform.post("/completion", {**BODY, **options, "n_predict": 20}).tree
        assert tree["content"] == STORY[9:29]
    reply = uniform.post("/completion", {**BODY, "top_k_start": 40})
    assert (reply.status, reply.error["param"]) == (400, "top_k_end")
    assert uniform.post("/infill", {**GAP, "top_k": 40}).status == 200, "clients send it with every fill"
