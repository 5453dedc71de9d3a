"""`POST /v1/chat/completions` and `/v1/apply/completions`: whole, streamed, as drafts, and with thoughts."""

import pytest
from chatty import HI, SPECIALS, chatty
from http_server import choices, message
from scripted import END_ID

ANSWER = "One line.\n\nAnd a second one, which is longer than the longest canvas: it goes on in another. é😋"


@pytest.fixture
def post(start):
    """Posts to a new server whose model gives this answer."""

    def call(answer, body, path="/v1/chat/completions", **script):
        return start(chatty(answer, **script)).post(path, body)

    return call


def test_a_message_may_have_several_parts_and_the_role_of_a_developer(post):
    parts = [{"type": "text", "text": "a"}, {"text": "b"}]
    body = {"messages": [{"role": "developer", "content": parts}, {"role": "user", "content": "c"}]}
    tree = post(ANSWER, body).tree
    assert (tree["choices"][0]["message"]["content"], tree["diffusion"]["blocks"]) == (ANSWER, 2)


def test_drafts_of_the_second_canvas_include_the_first(post):
    text = " ".join(map(str, range(100, 120)))
    streamed = choices(post(text, {**HI, "stream": True, "diffusing": True}, tokens_per_step=32))
    drafts = [choice["delta"]["content"] for choice in streamed]
    assert drafts[:2] == [text[:64]] * 2
    assert set(drafts[2:]) == {text}


@pytest.mark.parametrize("limits", [{"max_tokens": 5}, {"max_tokens": 9, "max_completion_tokens": 5}])
def test_a_limit_ends_an_answer(post, limits):
    [choice] = post(ANSWER, {**HI, **limits}, tokens_per_step=1).tree["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (ANSWER[:5], "length")


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_long_conversation_is_refused_before_a_stream_begins(post, is_streamed):
    body = {"messages": [{"role": "user", "content": "x" * 1000}], "stream": is_streamed}
    reply = post("x", body, context_length=512 + 64)
    assert reply.status == 400
    assert "512" in reply.error["message"]


def test_apply_adds_an_instruction_to_mercurys_template(post):
    prefixes = set()

    def answer(prefix, _suffix):
        prefixes.add(prefix)
        return "a = 2"

    content = "<|original_code|>\na = 1\n<|/original_code|>\n\n<|update_snippet|>\na = 2\n<|/update_snippet|>"
    tree = post(answer, {"messages": [{"role": "user", "content": content}]}, "/v1/apply/completions").tree
    assert tree["choices"][0]["message"]["content"] == "a = 2"
    assert "Apply the update" in max(prefixes, key=len)  # a prompt is decoded in pieces


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_thought_is_returned_beside_the_answer_and_only_the_answer_ends_at_a_stop(start, is_streamed):
    denoiser = chatty("<think>\nWhy\n\nnot?\n</think>\n\nBecause.\n\nAnd so on.")
    denoiser.tokenizer.special = {**SPECIALS, "<|think|>": END_ID}.get
    body = {**HI, "chat_template_kwargs": {"enable_thinking": True}, "stop": ["\n\n"], "stream": is_streamed}
    parts = choices(start(denoiser).post("/v1/chat/completions", body))
    assert "".join(message(part).get("reasoning_content", "") for part in parts) == "Why\n\nnot?"
    assert "".join(message(part)["content"] for part in parts) == "Because."
    assert parts[-1]["finish_reason"] == "stop"
