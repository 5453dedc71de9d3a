"""`POST /v1/chat/completions` and `/v1/apply/completions`: whole, streamed, and as drafts."""

import pytest
from chatty import HI, chatty
from http_server import choices

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
