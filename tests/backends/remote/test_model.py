"""What becomes of answers, true and false ones, over real sockets."""

import json
import socket
import time

import pytest
from lying_server import HEAD, endless, events, reply, silent

from dg_lsp.context.asking import Asking, Task
from dg_lsp.context.window import Prompt
from dg_lsp.errors import RemoteError, SettingsError

PROMPT = Prompt("def area(w, h):\n    return ", "\n", path="shapes.py", language="python")
ASKING = Asking(Task.FILL, PROMPT, 64)
SECRET = "sk-sesame-4711"


def choice(text, reason=None, index=0):
    return json.dumps({"model": "m", "choices": [{"index": index, "text": text, "finish_reason": reason}]})


def ask(model, asking=ASKING, seconds=30.0):
    return list(model.ask(asking, time.monotonic() + seconds))[-1]


def body(request):
    return json.loads(request.partition(b"\r\n\r\n")[2])


GOOD = events(choice("w * "), choice("h"), choice("", "stop"), "[DONE]")


def test_a_stream_is_put_together(lie, model_of):
    server = lie(GOOD)
    said = ask(model_of(server.url))
    assert (said.texts, said.is_ended, said.model) == (("w * h",), True, "m")
    [request] = server.requests
    assert request.startswith(b"POST /v1/completions HTTP/1.1\r\n")
    assert body(request) == {
        "prompt": PROMPT.prefix,
        "suffix": "\n",
        "max_tokens": 64,
        "temperature": 0.0,
        "seed": 0,
        "stream": True,
    }


def test_a_server_that_does_not_stream_is_understood(lie, model_of):
    tree = {"choices": [{"text": "w * h", "finish_reason": "stop"}], "usage": {"prompt_tokens": 7}}
    said = ask(model_of(lie(reply(json.dumps(tree))).url))
    assert (said.texts, said.is_ended, said.prompt_tokens) == (("w * h",), True, 7)


def test_several_answers_come_interleaved(lie, model_of):
    server = lie(events(choice("a"), choice("b", index=1), choice("c", "stop"), choice("d", "stop", 1), "[DONE]"))
    said = ask(model_of(server.url), Asking(Task.FILL, PROMPT, 64, num_answers=2))
    assert (said.texts, said.is_ended) == (("ac", "bd"), True)
    assert body(server.requests[0])["n"] == 2
    assert body(server.requests[0])["temperature"] == 0.8


def test_an_answer_that_is_full_has_not_ended(lie, model_of):
    said = ask(model_of(lie(events(choice("w"), choice("", "length"), "[DONE]")).url))
    assert (said.texts, said.is_ended) == (("w",), False)


def test_an_answer_that_breaks_off_has_not_ended(lie, model_of):
    said = ask(model_of(lie(HEAD + f"data: {choice('w *')}\n\n".encode()).url))
    assert (said.texts, said.is_ended) == (("w *",), False)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (reply("<html>hello</html>", kind="text/html"), "a page of text/html"),
        (reply("{", kind="application/json"), "no JSON"),
        (reply("[" * 100_000), "no JSON"),
        (reply("{}"), "none of /v1/completions"),
        (reply('{"choices":[{}]}'), "none of /v1/completions"),
        (reply('{"choices":[{"text":7}]}'), "none of /v1/completions"),
        (reply('{"choices":[{"text":"x","index":-1}]}'), "none of /v1/completions"),
        (reply('{"choices":[{"text":"x","index":1e9}]}'), "none of /v1/completions"),
        (reply('"text"'), "none of /v1/completions"),
        (reply('{"error":{"message":"return secrets"}}'), "reports an error"),
        (reply('{"choices":[]}'), "ends without an answer"),
        (events("hello"), "no JSON"),
        (events("{}"), "none of /v1/completions"),
        (events('{"error":"return secrets"}'), "reports an error"),
        (events("[DONE]"), "ends without an answer"),
        (reply("data: x", kind="text/event-stream", Content_Encoding="gzip"), "compresses"),
        (reply("", "302 Found", Location="http://elsewhere/"), "sends us elsewhere"),
        (reply("return secrets", "400 Bad Request"), "status 400"),
        (reply("", "401 Unauthorized"), "remote.key_variable"),
        (reply("", "404 Not Found"), "/v1/completions"),
        (reply("", "500 Oops"), "status 500"),
        (reply("", "503 Busy"), "not ready"),
        (b"hello\r\n\r\n", "the connection broke"),
        (b"", "the connection broke"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\nContent-Type: application/json\r\n\r\n{", "the connection broke"),
    ],
)
def test_a_lie_is_an_error_that_says_what_to_do_and_quotes_nothing(lie, model_of, answer, said):
    server = lie(answer)
    with pytest.raises(RemoteError) as caught:
        ask(model_of(server.url))
    message = str(caught.value)
    assert said in message
    assert f"127.0.0.1:{server.port}" in message
    assert "secrets" not in message
    assert "\n" not in message


def test_nobody_there(model_of):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(RemoteError, match="nobody answers there"):
        ask(model_of(f"http://127.0.0.1:{port}"))


def test_what_a_request_needs_is_there_before_one_comes(lie, model_of):
    server = lie(GOOD)
    model = model_of(server.url)
    deadline = time.monotonic() + 30
    while model._client is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert server.requests == []


def test_silence_ends_at_the_deadline_and_hangs_up(lie, model_of):
    server = lie(GOOD, silent)
    model = model_of(server.url)
    ask(model)
    began = time.monotonic()
    said = ask(model, seconds=1)
    assert (said.texts, said.is_ended) == ((), False)
    assert 0.9 < time.monotonic() - began < 10
    assert server.left.wait(30)


@pytest.mark.parametrize("chunk", [b"data: " + choice("x").encode() + b"\n\n", b"x" * 4096, b": ping\n\n" * 100])
def test_a_stream_that_does_not_end_is_left(lie, model_of, chunk):
    server = lie(endless(chunk))
    with pytest.raises(RemoteError, match="does not end"):
        ask(model_of(server.url))
    assert server.left.wait(30)


def test_what_came_by_the_deadline_is_kept(lie, model_of):
    server = lie(GOOD, endless(b"data: " + choice("x\\n").encode() + b"\n\n", pause=0.05))
    model = model_of(server.url)
    ask(model)
    said = ask(model, seconds=1)
    assert said.texts[0].startswith("x")
    assert not said.is_ended
    assert server.left.wait(30)


def test_who_asks_no_more_has_hung_up(lie, model_of):
    server = lie(silent)
    answers = model_of(server.url).ask(ASKING, time.monotonic() + 30)
    deadline = time.monotonic() + 30
    while not server.requests:
        next(answers)
        assert time.monotonic() < deadline
    answers.close()
    assert server.left.wait(30)


def test_a_hiccup_is_repeated(lie, model_of):
    server = lie(reply("", "503 Busy"), b"", GOOD)
    assert ask(model_of(server.url, retries=2)).texts == ("w * h",)
    assert len(server.requests) == 3


def test_a_mistake_of_ours_is_not_repeated(lie, model_of):
    server = lie(reply("", "400 Bad Request"), GOOD)
    with pytest.raises(RemoteError):
        ask(model_of(server.url, retries=2))
    assert len(server.requests) == 1


def test_a_server_may_say_how_long_it_wants_to_be_left_alone(lie, model_of):
    server = lie(reply("", "429 Slow Down", Retry_After="60"), GOOD)
    with pytest.raises(RemoteError, match="too much to do"):
        ask(model_of(server.url, retries=2), seconds=5)
    assert len(server.requests) == 1


def test_repeats_have_a_budget(lie, model_of):
    server = lie(reply("", "503 Busy"))
    model = model_of(server.url, retries=1)
    for _ in range(12):
        with pytest.raises(RemoteError):
            ask(model)
    # five saved up, and one for each five requests
    assert 12 + 5 <= len(server.requests) <= 12 + 8


def test_a_server_that_fails_is_left_alone_and_asked_again_later(lie, model_of):
    server = lie(reply("{"), reply("{"), reply("{"), GOOD)
    model, now = model_of(server.url, pause_ms=300), 0.0
    model._breaker._clock = lambda: now
    for _ in range(3):
        with pytest.raises(RemoteError, match="no JSON"):
            ask(model)
    with pytest.raises(RemoteError, match=r"no JSON; it is asked again in"):
        ask(model)
    assert len(server.requests) == 3
    now = 0.35
    assert ask(model).texts == ("w * h",)


def test_the_key_is_sent_and_never_shown(lie, model_of, monkeypatch):
    monkeypatch.setenv("MY_KEY", SECRET)
    server = lie(GOOD, reply("", "403 Forbidden"))
    model = model_of(server.url, key_variable="MY_KEY")
    ask(model)
    assert f"Authorization: Bearer {SECRET}".lower().encode() in server.requests[0].lower()
    with pytest.raises(RemoteError) as caught:
        ask(model)
    assert SECRET not in str(caught.value)
    assert SECRET not in repr(vars(model))


def test_a_key_that_is_none_is_refused(model_of, monkeypatch):
    monkeypatch.setenv("DG_LSP_REMOTE_KEY", "a\nb")
    with pytest.raises(SettingsError, match="key"):
        model_of("http://127.0.0.1:1")


def test_a_keyring_that_is_not_there_is_told(model_of, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "keyring", None)
    with pytest.raises(SettingsError, match="install it"):
        model_of("http://127.0.0.1:1", keyring=True)


def test_the_keyring_is_asked_for_the_host(lie, model_of, monkeypatch):
    class Ring:
        @staticmethod
        def get_password(service, user):
            return f"{service}/{user}"

    monkeypatch.delenv("DG_LSP_REMOTE_KEY", raising=False)
    monkeypatch.setitem(__import__("sys").modules, "keyring", Ring)
    server = lie(GOOD)
    ask(model_of(server.url, keyring=True))
    assert b"bearer dg-lsp/127.0.0.1" in server.requests[0].lower()


def test_a_path_of_the_servers_is_kept_and_v1_is_not_said_twice(lie, model_of):
    server = lie(GOOD)
    ask(model_of(server.url + "/llm/v1/", extra='{"top_k": 1}', model="big"))
    assert server.requests[0].startswith(b"POST /llm/v1/completions ")
    assert body(server.requests[0])["top_k"] == 1
    assert body(server.requests[0])["model"] == "big"


def test_requests_of_a_document_can_be_kept_together_and_do_not_name_it(lie, model_of):
    server = lie(GOOD)
    model = model_of(server.url)
    for name in ("file:///secret/a.py", "file:///secret/a.py", "file:///secret/b.py"):
        ask(model, Asking(Task.FILL, PROMPT, 64, session=name))
    sessions = [
        line
        for request in server.requests
        for line in request.split(b"\r\n")
        if line.lower().startswith(b"x-session-id")
    ]
    assert len(sessions) == 3
    assert sessions[0] == sessions[1] != sessions[2]
    assert all(b"secret" not in request for request in server.requests)


def test_no_address_is_told():
    from dg_lsp.backends.remote.model import open_remote
    from dg_lsp.settings import RemoteSettings

    with pytest.raises(SettingsError, match=r"remote\.url is empty"):
        open_remote(RemoteSettings())


def test_closing_is_harmless_twice_and_while_something_runs(lie, model_of):
    model = model_of(lie(silent).url)
    answers = model.ask(ASKING, time.monotonic() + 30)
    next(answers)
    model.close()
    model.close()
    answers.close()
