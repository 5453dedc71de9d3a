"""Responses over real sockets: which become an answer, which an error, and when a server is retried."""

import json
import time
from contextlib import ExitStack, closing
from dataclasses import replace

import pytest
from gates import wait_until
from lying_server import CERTIFICATES, HEAD, LyingServer, chunked, endless, events, read_request, reply, silent

from dg_lsp.backends.remote import client
from dg_lsp.backends.remote.client import RemoteModel
from dg_lsp.backends.remote.dialects import RemoteQuery, RemoteTask
from dg_lsp.context.window import Prompt
from dg_lsp.errors import RemoteError, SettingsError
from dg_lsp.settings import RemoteSettings

from .conftest import last_answer

PROMPT = Prompt("def area(w, h):\n    return ", "\n", path="shapes.py", language="python")
QUERY = RemoteQuery(RemoteTask.FILL, PROMPT, 64)
SECRET = "sk-sesame-4711"
TRUSTED = str(CERTIFICATES / "localhost.pem")


@pytest.fixture
def serve():
    """Starts servers with `serve(*answers, models=None, tls=None)`."""
    with ExitStack() as servers:
        yield lambda *answers, **options: servers.enter_context(closing(LyingServer(*answers, **options)))


def choice(text, reason=None, index=0):
    return json.dumps({"model": "m", "choices": [{"index": index, "text": text, "finish_reason": reason}]})


def event(text, reason=None):
    return f"data: {choice(text, reason)}\n\n".encode()


WHOLE = event("w * ") + event("h", "stop")
GOOD = events(choice("w * "), choice("h"), choice("", "stop"), "[DONE]")


def body(request):
    return json.loads(request.partition(b"\r\n\r\n")[2])


def test_request_has_the_fields_of_the_api_and_of_the_settings(serve, model_of):
    server = serve(GOOD, reply('{"content": "w * h"}'))
    model = model_of(server.url + "/llm/v1/", extra='{"top_k": 1}', model="big")
    answer = last_answer(model, QUERY)
    assert (answer.texts, answer.is_finished, answer.model) == (("w * h",), True, "m")
    fields = {"max_tokens": 64, "temperature": 0.0, "seed": 0, "stream": True, "model": "big", "top_k": 1}
    assert body(server.requests[0]) == {"prompt": PROMPT.prefix, "suffix": "\n", **fields}
    assert last_answer(model_of(server.url + "/llm/v1/", api="infill"), QUERY).texts == ("w * h",)
    paths = [request.split()[1] for request in server.requests]
    assert paths == [b"/llm/v1/completions", b"/llm/infill"]


def test_several_answers_are_kept_apart(serve, model_of):
    server = serve(events(choice("a"), choice("b", index=1), choice("c", "stop"), choice("d", "stop", 1), "[DONE]"))
    answer = last_answer(model_of(server.url), replace(QUERY, num_answers=2))
    assert (answer.texts, answer.is_finished) == (("ac", "bd"), True)
    assert (body(server.requests[0])["n"], body(server.requests[0])["temperature"]) == (2, 0.8)


WRONG_LENGTH = HEAD[:-2] + b"Content-Length: %d\r\n\r\n" % (len(event("w * ")) + 9) + WHOLE


@pytest.mark.parametrize(
    ("response", "text"),
    [
        pytest.param(chunked(*(bytes([byte]) for byte in WHOLE)), "w * h", id="single bytes"),
        pytest.param(chunked(WHOLE, end=b""), "w * h", id="broken after the answer"),
        pytest.param(chunked(WHOLE, b"data: {\n\n"), "w * h", id="invalid after the answer"),
        pytest.param(reply(WHOLE, kind="Text/Event-Stream; charset=utf-8"), "w * h", id="content type in capitals"),
        pytest.param(reply(WHOLE, kind="text/event-stream; charset=utf-16"), "w * h", id="wrong charset"),
        pytest.param(HEAD + event("w * "), "w * ", id="closed connection"),
        pytest.param(WRONG_LENGTH, "w * ", id="short length"),
    ],
)
def test_unusual_response_is_understood(serve, model_of, response, text):
    answer = last_answer(model_of(serve(response).url), QUERY)
    assert (answer.texts, answer.is_finished) == ((text,), text == "w * h")


@pytest.mark.parametrize(
    ("response", "message"),
    [
        (reply("x", kind=""), "content without a type"),
        (reply("{", kind="application/json"), "not JSON"),
        (reply("[" * 100_000), "not JSON"),
        (reply(b'{"choices":[{"text":"\xff"}]}'), "not UTF-8"),
        (reply("{}"), "does not fit /v1/completions"),
        (reply('{"choices":[{"text":7}]}'), "does not fit /v1/completions"),
        (reply('{"choices":[{"text":"x","index":-1}]}'), "does not fit /v1/completions"),
        (reply('{"error":{"message":"return secrets"}}'), "reports an error"),
        (reply('{"choices":[]}'), "without an answer"),
        (events('{"error":"return secrets"}'), "reports an error"),
        (chunked(event("w"), b'data: {"error": "Expected "secrets\x06" here"}\n\n'), "reports an error"),
        (chunked(event("w"), b"event: error\ndata: secrets\n\n"), "not JSON"),
        (chunked(event("w"), b"data: \xff\n\n"), "not UTF-8"),
        (reply(b"\x1f\x8b\x08", Content_Encoding="gzip"), "not UTF-8"),
        (chunked(event("w * "), end=b""), "broke the connection"),
    ],
    ids=lambda value: value if isinstance(value, str) else "response",
)
def test_invalid_response_is_an_error_that_does_not_quote_it(serve, model_of, response, message):
    server = serve(response)
    with pytest.raises(RemoteError) as caught:
        last_answer(model_of(server.url), QUERY)
    error = str(caught.value)
    assert error.startswith(f"127.0.0.1:{server.port} ")
    assert message in error
    assert "secrets" not in error
    assert "\n" not in error


def test_a_redirect_is_not_followed(serve, model_of):
    target = serve(GOOD)
    server = serve(reply("", "307 Temporary", Location=f"{target.url}/v1/completions"))
    with pytest.raises(RemoteError, match="redirects to another address"):
        last_answer(model_of(server.url), QUERY)
    assert (len(server.requests), target.requests) == (1, [])


@pytest.mark.parametrize(
    ("named", "languages"),
    [("python", ("python",)), ("python,c++", ("python", "c++")), ("", ()), ("<b>, \u00fc", ()), ("x" * 5000, ())],
    ids=["one", "two", "none", "no ids", "too long"],
)
def test_the_languages_of_the_model_are_read_from_each_response(serve, model_of, monkeypatch, named, languages):
    monkeypatch.setenv("DG_LSP_REMOTE_KEY", SECRET)
    server = serve(reply(choice("w", "stop"), dg_lsp_languages=named), models=reply("{}", dg_lsp_languages=named))
    for learn_from in (RemoteModel.learn_languages, lambda model: last_answer(model, QUERY)):
        model = model_of(server.url + "/llm/v1/")
        assert model.languages == ()
        learn_from(model)
        assert model.languages == languages
    [request] = server.asked
    assert request.startswith(b"GET /llm/v1/models HTTP/1.1\r\n")
    assert f"authorization: bearer {SECRET}".encode() in request.lower()
    model_of(server.url, api="chat").learn_languages()  # of two models another one may chat
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    "models", [reply("", "404 Not Found"), b"", b"no HTTP", silent], ids=("404", "nothing", "no HTTP", "silence")
)
def test_a_server_that_names_no_languages_is_no_error(serve, model_of, models, monkeypatch):
    model = model_of(serve(GOOD, models=models).url)
    monkeypatch.setattr(client, "CONNECT_SECONDS", 0.2)
    model.learn_languages()
    assert model.languages == ()
    assert last_answer(model, QUERY).texts == ("w * h",)


def test_model_name_is_printable_and_short(serve, model_of):
    tree = {"model": "m\x1b[2J\ud800\n" + "x" * 9999, "choices": [{"text": "y", "finish_reason": "stop"}]}
    name = "m\\x1b[2J\\ud800\\n" + "x" * 104
    assert last_answer(model_of(serve(reply(json.dumps(tree))).url), QUERY).model == name


@pytest.mark.parametrize(("response", "start"), [(silent, ""), (endless(event("x\\n"), pause=0.05), "x")])
def test_text_at_the_deadline_is_the_answer_and_the_connection_is_closed(serve, model_of, response, start):
    server = serve(GOOD, response)
    model = model_of(server.url)
    last_answer(model, QUERY)
    answer = last_answer(model, QUERY, seconds=3)
    assert "".join(answer.texts)[:1] == start
    assert not answer.is_finished
    assert server.left.wait(30)


@pytest.mark.parametrize(
    "chunk", [event("x"), b"x" * 4096, b": ping\n\n" * 100, b"\n" * 4096], ids=["text", "line", "comments", "line ends"]
)
def test_endless_stream_is_an_error(serve, model_of, chunk):
    server = serve(endless(chunk))
    with pytest.raises(RemoteError, match="does not end"):
        last_answer(model_of(server.url), QUERY)
    assert server.left.wait(30)


def test_complete_answer_is_returned_before_the_response_ends(serve, model_of):
    def answer(server, connection):
        connection.sendall(HEAD + WHOLE)
        silent(server, connection)

    server = serve(answer)
    assert last_answer(model_of(server.url), QUERY).is_finished
    assert server.left.wait(30)


@pytest.mark.parametrize("end", [b"", b"data: [DONE]\n\n"], ids=["", "done"])
def test_a_connection_serves_the_next_query(serve, model_of, end):
    response = chunked(WHOLE + end).replace(b"Connection: close\r\n", b"")

    def answer(_server, connection):
        connection.sendall(response)
        if read_request(connection):
            connection.sendall(response)

    server = serve(answer)
    model = model_of(server.url)
    assert [last_answer(model, QUERY).texts for _ in range(2)] == [("w * h",), ("w * h",)]
    assert len(server.requests) == 1, "the second query had a connection of its own"


@pytest.mark.parametrize("tls", [None, "localhost.pem"])
@pytest.mark.parametrize("closed", ["stream", "model"])
def test_closing_a_stream_or_its_model_closes_the_connection(serve, model_of, tls, closed):
    server = serve(silent, tls=tls)
    model = model_of(server.url, ca_file=TRUSTED)
    answers = model.stream(QUERY, time.monotonic() + 60)
    wait_until(lambda: next(answers) and server.requests)
    if closed == "stream":
        answers.close()
    model.close()
    assert all(answer.texts == () for answer in answers)
    assert server.left.wait(30)


def test_requests_pause_for_the_retry_after_time_of_a_server_but_at_most_a_minute(serve, model_of):
    server = serve(reply("", "429 Slow Down", Retry_After="3600"), GOOD)
    model = model_of(server.url)
    with pytest.raises(RemoteError, match="is busy"):
        last_answer(model, QUERY, seconds=50)
    with pytest.raises(RemoteError, match=r"is busy \(status 429\); the next request is possible in [1-6]\d s"):
        last_answer(model, QUERY, seconds=50)
    assert len(server.requests) == 1


@pytest.mark.parametrize("value", ["-5", "soon", "", "0"])
def test_invalid_retry_after_does_not_prevent_the_next_request(serve, model_of, value):
    model = model_of(serve(reply("", "503 Busy", Retry_After=value), GOOD).url)
    with pytest.raises(RemoteError, match="not ready"):
        last_answer(model, QUERY)
    assert last_answer(model, QUERY).texts == ("w * h",)


def test_silence_is_a_failure_only_with_enough_time_for_an_answer(serve, model_of, monkeypatch):
    server = serve(silent)
    model = model_of(server.url)
    monkeypatch.setattr(client, "PAUSE_SECONDS", 60.0)
    for seconds in (-1.0, 0.0, 0.01, 0.01, 0.01):
        assert last_answer(model, QUERY, seconds).texts == ()
    with pytest.raises(RemoteError, match="no answer within the deadline; the next request"):
        for _ in range(20):
            assert last_answer(model, QUERY, seconds=0.5).texts == ()


@pytest.mark.parametrize("tls", [None, "localhost.pem"])
def test_the_key_is_sent_and_never_quoted(serve, model_of, monkeypatch, tls):
    monkeypatch.setenv("MY_KEY", SECRET)
    server = serve(reply("", "403 Forbidden"), tls=tls)
    with pytest.raises(RemoteError) as caught:
        last_answer(model_of(server.url, key_source="MY_KEY", ca_file=TRUSTED), QUERY)
    assert f"Authorization: Bearer {SECRET}".lower().encode() in server.requests[0].lower()
    assert SECRET not in str(caught.value)


UNENCRYPTED = r"without encryption: use an https address, or set remote\.allow_http"


@pytest.mark.parametrize(
    ("settings", "key", "message"),
    [
        pytest.param({"url": ""}, "", r"remote\.url is empty", id="no address"),
        pytest.param({}, "a\nb", "key", id="invalid key"),
        pytest.param({"ca_file": str(CERTIFICATES / "gone.pem")}, "", "no readable certificates", id="missing file"),
        pytest.param({"ca_file": __file__}, "", "no readable certificates", id="no certificates"),
        pytest.param({"ca_file": "~gone/a.pem"}, "", "no readable certificates", id="an unknown user's home"),
        pytest.param({"url": "http://gpu-1.example:8000"}, "", UNENCRYPTED, id="another machine"),
        pytest.param({"url": "http://127.0.0.1.example"}, "", UNENCRYPTED, id="a name like this machine's"),
    ],
)
def test_wrong_settings_are_refused(monkeypatch, settings, key, message):
    monkeypatch.setenv("DG_LSP_REMOTE_KEY", key)
    with pytest.raises(SettingsError, match=message):
        RemoteModel(RemoteSettings(**{"url": "https://localhost:1", **settings}))


@pytest.mark.parametrize("url", ["https://gpu-1.example", "http://localhost:1", "http://[::1]:1", "http://127.0.0.1:1"])
def test_encrypted_and_local_addresses_and_those_that_the_user_allows_are_used(url):
    RemoteModel(RemoteSettings(url)).close()
    RemoteModel(RemoteSettings("http://192.0.2.1", allow_http=True)).close()


def test_requests_of_a_document_have_one_session_that_does_not_name_it(serve, model_of):
    server = serve(GOOD)
    model = model_of(server.url)
    for name in ("file:///secret/a.py", "file:///secret/a.py", "file:///secret/b.py"):
        last_answer(model, replace(QUERY, session=name))
    lines = [line for request in server.requests for line in request.split(b"\r\n")]
    first, second, third = (line for line in lines if line.lower().startswith(b"x-session-id"))
    assert first == second != third
    assert all(b"secret" not in request for request in server.requests)


@pytest.mark.parametrize(
    ("certificate", "address", "ca_file", "message"),
    [
        pytest.param("localhost.pem", "https://localhost", "", r"self-signed.*; set remote\.ca_file", id="unknown"),
        pytest.param("localhost.pem", "https://127.0.0.1", TRUSTED, "mismatch", id="another host"),
        pytest.param("expired.pem", "https://localhost", str(CERTIFICATES / "expired.pem"), "expired", id="expired"),
        pytest.param(None, "https://localhost", TRUSTED, "does not speak TLS on this port", id="no TLS"),
        pytest.param("localhost.pem", "http://localhost", "", "broke the connection", id="TLS only"),
    ],
)
def test_no_request_is_sent_to_an_untrusted_server(serve, model_of, certificate, address, ca_file, message):
    server = serve(GOOD, tls=certificate)
    with pytest.raises(RemoteError, match=message):
        last_answer(model_of(f"{address}:{server.port}", ca_file=ca_file), QUERY)
    assert not any(b"HTTP/1.1" in request for request in server.requests)
