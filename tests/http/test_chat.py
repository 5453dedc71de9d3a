"""`POST /v1/chat/completions` and `/v1/apply/completions`, plain, streamed, and as drafts that replace each other."""

import json
import socket
import time

import pytest
from chatty import chatty

TIMEOUT = 30
ASKED = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
ANSWER = "One line.\n\nAnd a second one, which is longer than the longest canvas: it goes on in another. é😋"
# llama.vim's instruct edit
LLAMA_VIM = {
    "id_slot": 1,
    "messages": [{"role": "system", "content": "You edit code."}, {"role": "user", "content": "rename a"}],
    "min_p": 0.1,
    "temperature": 0.1,
    "samplers": ["min_p", "temperature"],
    "stream": True,
    "cache_prompt": True,
}


def choices(reply):
    *found, done = reply.events
    assert done == "[DONE]"
    return [one["choices"][0] for one in map(json.loads, found)]


@pytest.fixture
def told(start):
    """Asks a new server whose model answers this."""

    def call(answer, body, path="/v1/chat/completions", **script):
        return start(chatty(answer, **script)).post(path, body)

    return call


def test_a_plain_answer(told):
    tree = told(ANSWER, ASKED).tree
    assert tree["object"] == "chat.completion"
    assert tree["choices"] == [
        {"index": 0, "message": {"role": "assistant", "content": ANSWER}, "finish_reason": "stop"}
    ]
    assert tree["usage"]["completion_tokens"] == len(ANSWER.encode()) + 1
    assert tree["diffusion"]["blocks"] == 2


def test_llama_vims_instruct_edit_is_streamed_as_it_settles(told):
    found = choices(told(ANSWER, LLAMA_VIM, tokens_per_step=3))
    assert "".join(one["delta"]["content"] for one in found) == ANSWER
    assert len(found) > 10
    assert [one["finish_reason"] for one in found] == [None] * (len(found) - 1) + ["stop"]


def test_drafts_replace_each_other(told):
    found = choices(told("abcdefgh", {**ASKED, "stream": True, "diffusing": True}, tokens_per_step=4))
    # the script knows it all from the beginning
    assert [one["delta"]["content"] for one in found] == ["abcdefgh"] * 4
    assert found[-1]["finish_reason"] == "stop"


def test_drafts_of_the_second_canvas_go_on_from_the_first(told):
    text = " ".join(map(str, range(100, 120)))
    found = choices(told(text, {**ASKED, "stream": True, "diffusing": True}, tokens_per_step=32))
    drafts = [one["delta"]["content"] for one in found]
    assert drafts[:2] == [text[:64]] * 2
    assert set(drafts[2:]) == {text}


@pytest.mark.parametrize("is_streamed", [False, True])
def test_stops_and_bounds(told, is_streamed):
    def said(**more):
        reply = told(ANSWER, {**ASKED, "stream": is_streamed, **more}, tokens_per_step=1)
        found = choices(reply) if is_streamed else reply.tree["choices"]
        part = "delta" if is_streamed else "message"
        return "".join(one[part]["content"] for one in found), found[-1]["finish_reason"]

    assert said(stop=["\n\nAnd", "nowhere"]) == ("One line.", "stop")
    assert said(max_tokens=5) == (ANSWER[:5], "length")
    assert said(max_completion_tokens=70) == (ANSWER[:70], "length")


def test_usage_comes_last_for_who_asks(told):
    reply = told("x", {**ASKED, "stream": True, "stream_options": {"include_usage": True}})
    *_, last, _ = reply.events
    assert json.loads(last)["usage"]["completion_tokens"] == 2


def test_parts_of_a_message_that_are_texts(told):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    tree = told("x", {"messages": [{"role": "developer", "content": parts}, {"role": "user", "content": "c"}]}).tree
    assert tree["choices"][0]["message"]["content"] == "x"


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "cook", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 1}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"n": 2}, "n"),
        ({"diffusing": "yes"}, "diffusing"),
    ],
)
def test_a_wrong_type_is_refused_by_its_fields_name(module_client, more, field):
    reply = module_client.post("/v1/chat/completions", {**ASKED, **more})
    assert (reply.status, reply.error["param"]) == (400, field)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/apply/completions"])
def test_a_model_that_follows_no_instructions_says_so(module_client, path):
    reply = module_client.post(path, ASKED)
    assert (reply.status, reply.error["type"]) == (501, "not_supported_error")


@pytest.mark.parametrize("is_streamed", [False, True])
def test_what_cannot_be_answered_is_refused_before_a_stream_begins(told, is_streamed):
    long = {"messages": [{"role": "user", "content": "x" * 1000}], "stream": is_streamed}
    reply = told("x", long)
    assert reply.status == 400
    assert "shorten it" in reply.error["message"]


def test_mercurys_apply_is_a_chat_that_is_told_what_to_do(told):
    seen = set()

    def answer(prefix, suffix):
        seen.add(prefix)
        return "a = 2"

    content = "<|original_code|>\na = 1\n<|/original_code|>\n\n<|update_snippet|>\na = 2\n<|/update_snippet|>"
    tree = told(answer, {"messages": [{"role": "user", "content": content}]}, "/v1/apply/completions").tree
    assert tree["choices"][0]["message"]["content"] == "a = 2"
    [prompt] = seen
    assert "Apply the update" in prompt


def test_a_client_that_leaves_its_stream_stops_the_model(start):
    denoiser = chatty("x" * 4000, step_seconds=0.02, tokens_per_step=1)
    client = start(denoiser)
    body = json.dumps({**ASKED, "stream": True}).encode()
    with socket.create_connection(("127.0.0.1", client.port), timeout=TIMEOUT) as connection:
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
        connection.sendall(head + body)
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
    deadline = time.monotonic() + TIMEOUT
    while "\ndg_lsp_left_total 1\n" not in client.get("/metrics").body.decode():
        assert time.monotonic() < deadline
    num_steps = denoiser.num_steps
    assert num_steps < 1000
    time.sleep(0.1)
    assert denoiser.num_steps <= num_steps + 1


def test_an_engine_that_fails_in_the_middle_ends_the_stream_with_an_error(start):
    class FailingError(Exception):
        pass

    denoiser = chatty("abcdef", tokens_per_step=1)
    predict = denoiser.predict

    def fail_later(*args):
        if denoiser.num_steps == 3:
            raise FailingError
        return predict(*args)

    denoiser.predict = fail_later
    *_, last = start(denoiser).post("/v1/chat/completions", {**ASKED, "stream": True}).events
    assert json.loads(last) == {
        "error": {"code": 500, "message": "internal error: FailingError", "type": "server_error"}
    }
