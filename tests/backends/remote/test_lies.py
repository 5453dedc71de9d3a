"""Servers that break the rules of HTTP, or keep them to the letter and say nothing."""

import json
import time
from email.utils import formatdate

import pytest
from lying_server import HEAD, chunked, endless, events, reply, silent

from dg_lsp.context.asking import Asking, Task
from dg_lsp.context.window import Prompt
from dg_lsp.errors import RemoteError

ASKING = Asking(Task.FILL, Prompt("def area(w, h):\n    return ", "\n"), 64)
SECRET = "sk-sesame-4711"


def event(text, reason=None):
    tree = {"model": "m", "choices": [{"index": 0, "text": text, "finish_reason": reason}]}
    return f"data: {json.dumps(tree)}\n\n".encode()


WHOLE = event("w * ") + event("h", "stop")
GOOD = events(*(part.removeprefix("data: ") for part in WHOLE.decode().split("\n\n") if part))


def ask(model, seconds=30.0):
    return list(model.ask(ASKING, time.monotonic() + seconds))[-1]


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(HEAD.replace(b"1.1", b"1.0", 1) + WHOLE, id="HTTP/1.0, to its end"),
        pytest.param(HEAD + WHOLE.replace(b"\n", b"\r\n"), id="lines end as on Windows"),
        pytest.param(chunked(*(bytes([byte]) for byte in WHOLE)), id="a byte at a time"),
        pytest.param(chunked(b": a remark\n\nevent: x\nid: 7\nretry: 1\n", WHOLE), id="all that events may have"),
        pytest.param(chunked(WHOLE, end=b""), id="whole, and then broken"),
        pytest.param(chunked(WHOLE, b"data: {\n\n"), id="whole, and then nonsense"),
        pytest.param(b"HTTP/1.1 100 Continue\r\n\r\n" * 3 + GOOD, id="goes on first"),
        pytest.param(reply(WHOLE, kind="Text/Event-Stream; charset=utf-8"), id="says it louder"),
    ],
)
def test_a_strange_way_to_say_it_is_understood(lie, model_of, answer):
    said = ask(model_of(lie(answer).url))
    assert (said.texts, said.is_ended) == (("w * h",), True)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(chunked(event("w * "), end=b""), id="no last chunk"),
        pytest.param(chunked(event("w * "), end=b"zz\r\n"), id="a chunk of no length"),
        pytest.param(chunked(event("w * "), end=b"5\r\nabc"), id="a chunk cut short"),
        pytest.param(HEAD[:-2] + b"Content-Length: 9999\r\n\r\n" + event("w * "), id="longer than it is"),
        pytest.param(HEAD[:-2] + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n", id="two lengths"),
        pytest.param(HEAD[:-2] + b"Content-Length: -1\r\n\r\n", id="a length below nothing"),
        pytest.param(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 50_000 + b"\r\n", id="headers without an end"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01", id="no HTTP at all"),
    ],
)
def test_a_broken_answer_is_an_error(lie, model_of, answer):
    with pytest.raises(RemoteError, match="the connection broke"):
        ask(model_of(lie(answer).url))


def test_an_error_that_is_badly_quoted_is_one(lie, model_of):
    answer = chunked(event("w * "), b'data: {"error": "Expected "w\x06" here"}\n\n')
    with pytest.raises(RemoteError, match="reports an error in the middle"):
        ask(model_of(lie(answer).url))


def test_an_answer_that_its_length_cuts_has_not_ended(lie, model_of):
    length = len(event("w * ")) + 9
    said = ask(model_of(lie(HEAD[:-2] + b"Content-Length: %d\r\n\r\n" % length + WHOLE).url))
    assert (said.texts, said.is_ended) == (("w * ",), False)


@pytest.mark.parametrize(
    "chunk",
    [
        pytest.param(b": ping\n\n", id="remarks"),
        pytest.param(b"x", id="a line without an end"),
        pytest.param(b"\n", id="nothing"),
        pytest.param(event(""), id="words without a letter"),
    ],
)
def test_a_stream_that_goes_on_without_a_word_ends_at_the_deadline(lie, model_of, chunk):
    server = lie(endless(chunk, pause=0.05))
    began = time.monotonic()
    assert ask(model_of(server.url), seconds=0.4).texts in ((), ("",))
    assert 0.3 < time.monotonic() - began < 25
    assert server.left.wait(30) or not server.requests  # a busy machine may not even have asked


def test_what_follows_a_whole_answer_is_not_waited_for(lie, model_of):
    def answer(server, connection):
        connection.sendall(HEAD + WHOLE)
        silent(server, connection)

    server = lie(answer)
    began = time.monotonic()
    assert ask(model_of(server.url)).is_ended
    assert time.monotonic() - began < 25
    assert server.left.wait(30)


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 See Other", "307 Temporary", "308 Permanent"])
def test_nobody_follows_to_another_host(lie, model_of, monkeypatch, status):
    monkeypatch.setenv("DG_LSP_REMOTE_KEY", SECRET)
    other = lie(GOOD)
    server = lie(reply("", status, Location=f"{other.url}/v1/completions"))
    with pytest.raises(RemoteError, match="sends us elsewhere"):
        ask(model_of(server.url, retries=3))
    assert other.requests == []
    assert len(server.requests) == 1


def test_a_refusal_that_does_not_end_is_told_all_the_same(lie, model_of):
    def answer(server, connection):
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 9999\r\n\r\n{")
        silent(server, connection)

    with pytest.raises(RemoteError, match="status 400"):
        ask(model_of(lie(answer).url))


@pytest.mark.parametrize(
    "said",
    [
        pytest.param('{"error":{"type":"exceed_context_size_error","n_ctx":2048}}', id="llama-server"),
        pytest.param('{"message":"This model\'s maximum context length is 8192 tokens."}', id="vLLM"),
        pytest.param('{"message":"The input is longer than the model\'s context length"}', id="SGLang"),
        pytest.param('{"error":{"code":"context_length_exceeded"}}', id="OpenAI"),
    ],
)
def test_a_prompt_that_is_too_long_is_told(lie, model_of, said):
    with pytest.raises(RemoteError, match=r"lower remote\.max_prompt_tokens"):
        ask(model_of(lie(reply(said, "400 Bad Request")).url))


@pytest.mark.parametrize(
    "later", [pytest.param("3600", id="seconds"), pytest.param(formatdate(time.time() + 3600, usegmt=True), id="date")]
)
def test_a_server_that_wants_to_be_left_alone_is_for_a_minute_at_most(lie, model_of, later):
    server = lie(reply("", "429 Slow Down", Retry_After=later), GOOD)
    model = model_of(server.url, retries=2)
    with pytest.raises(RemoteError, match="too much to do"):
        ask(model, seconds=50)
    with pytest.raises(RemoteError, match=r"too much to do \(status 429\); it is asked again in [1-6]\d s"):
        ask(model, seconds=50)
    assert len(server.requests) == 1


@pytest.mark.parametrize("later", ["-5", "soon", "", "Thu, 01 Jan 1970 00:00:00 GMT", "9" * 500, "Mon, 99 Foo 1"])
def test_a_wish_that_is_none_is_passed_over(lie, model_of, later):
    server = lie(reply("", "503 Busy", Retry_After=later), GOOD)
    if later.isdigit():
        with pytest.raises(RemoteError, match="not ready"):
            ask(model_of(server.url, retries=1), seconds=50)
    else:
        assert ask(model_of(server.url, retries=1)).texts == ("w * h",)


def test_a_soon_enough_wish_is_granted(lie, model_of):
    server = lie(reply("", "429 Slow Down", Retry_After="1"), GOOD)
    began = time.monotonic()
    assert ask(model_of(server.url, retries=1)).texts == ("w * h",)
    assert time.monotonic() - began >= 1


def test_who_had_no_time_is_not_to_blame(lie, model_of):
    server = lie(silent)
    model = model_of(server.url, pause_ms=60_000)
    for seconds in (-1.0, 0.0, 0.01, 0.01, 0.01):
        assert [said.texts for said in model.ask(ASKING, time.monotonic() + seconds)][-1:] in ([], [()])
    server.answers = (GOOD,)
    assert ask(model).texts == ("w * h",)


def test_who_had_time_is(lie, model_of):
    model = model_of(lie(silent).url, pause_ms=60_000)
    with pytest.raises(RemoteError, match=r"says nothing within the deadline; it is asked again in"):
        for _ in range(20):  # three are enough where the machine has time itself
            assert ask(model, seconds=0.5).texts == ()


def test_what_a_server_calls_its_model_is_made_fit_to_print(lie, model_of):
    tree = {"model": "m\x1b[2J\ud800\n" + "x" * 9999, "choices": [{"text": "y", "finish_reason": "stop"}]}
    assert ask(model_of(lie(reply(json.dumps(tree))).url)).model == "m[2J" + "x" * 116
