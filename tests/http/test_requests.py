"""Requests that no endpoint can take, and the forms of HTTP that every endpoint takes.

`soak/web.py` sends heads that are too long, bodies that are no JSON and bytes that are no HTTP.
"""

import http.client
import json
from contextlib import ExitStack, closing, suppress
from select import select
from unittest.mock import patch

import pytest
from gates import TIMEOUT, wait_until
from http_server import OPERATOR, connect, packed
from scripted import ScriptedDenoiser

from dg_lsp.http import app, auth

BODY = b'{"prompt":"a = "}'
HEALTH, DOCUMENT = (b"GET /%b HTTP/1.1\r\nHost: localhost\r\n\r\n" % path for path in (b"health", b"openapi.json"))


def received(connection):
    """All bytes until the server closes the connection."""
    data = b""
    with suppress(ConnectionError):
        while piece := connection.recv(1 << 16):
            data += piece
    return data


MESSAGE = {"role": "user", "content": "x"}
INVALID = [
    ("/infill", {"input_prefix": 1}, "input_prefix"),
    ("/infill", {"n_predict": 1.5}, "n_predict"),
    ("/infill", {"stop": ["x"] * 65}, "stop"),
    ("/infill", {"input_extra": [{"text": "a"}, {"text": 1}]}, "input_extra[1].text"),
    ("/infill", {"input_extra": [{"text": "a"}] * 4097}, "input_extra"),
    ("/infill", {"response_fields": ["/" * 2**20]}, "response_fields[0]"),
    ("/infill", {"n_cmpl": 99}, "n_cmpl"),
    *(("/infill", b'{"t_max_predict_ms":%b}' % number, "t_max_predict_ms") for number in (b"1e999", b"NaN")),
    ("/v1/completions", {"prompt": ["a", "b"]}, "prompt"),
    ("/v1/completions", {"mode": "next_edit_suggestion"}, "mode"),
    ("/v1/chat/completions", {}, "messages"),
    ("/v1/chat/completions", {"messages": [{**MESSAGE, "content": [{"type": "url"}]}]}, "messages[0].content[0].type"),
    ("/v1/chat/completions", {"messages": [MESSAGE], "n": 2}, "n"),
    ("/v1/events", {"type": "x" * 100}, "type"),
]


@pytest.mark.parametrize(("path", "body", "field"), INVALID, ids=[f"{path} {field}" for path, _, field in INVALID])
def test_an_invalid_field_is_named_in_the_error(module_client, path, body, field):
    reply = module_client.post(path, body)
    assert (reply.status, reply.error["param"], reply.error["type"]) == (400, field, "invalid_request_error")
    assert reply.error["message"].startswith(f"Field '{field}': ")


def test_an_error_does_not_quote_the_invalid_value(module_client):
    body = {"input_prefix": ["secret"], "n_cmpl": "secret", "input_extra": [{"secret": 1}]}
    assert b"secret" not in module_client.post("/infill", body).body


@pytest.mark.parametrize("content_type", ["application/x-www-form-urlencoded", "text/plain", "nonsense"])
def test_the_content_type_is_ignored(module_client, content_type):
    reply = module_client.send("POST", "/v1/completions", BODY, {"Content-Type": content_type})
    assert (reply.status, reply.tree["choices"][0]["text"]) == (200, "total")


def test_a_long_body_is_refused(start, monkeypatch):
    monkeypatch.setattr(app, "MAX_BODY_BYTES", 2048)
    client = start(ScriptedDenoiser("x"))
    assert client.post("/infill", {"input_prefix": "a" * 1000}).status == 200
    long = json.dumps({"input_prefix": "a" * 2048}).encode()
    assert client.post("/infill", long).status == 413
    chunks = (long[at : at + 512] for at in range(0, len(long), 512))
    reply = client.send("POST", "/infill", chunks)  # without Content-Length
    assert (reply.status, reply.error["type"]) == (413, "invalid_request_error")


@pytest.mark.parametrize(
    ("module", "limit", "sent", "more", "answer"),
    [
        (auth, "HEAD_SECONDS", b"", b"", b""),
        (auth, "HEAD_SECONDS", b"POST /infill HTTP/1.1\r\nHost: local", b"x", b""),
        (app, "BODY_SECONDS", packed("/infill", b" " * 9999)[:-9999], b" ", b"HTTP/1.1 408"),
    ],
    ids=["nothing", "head", "body"],
)
def test_a_request_that_trickles_ends(start, monkeypatch, module, limit, sent, more, answer):
    client = start(ScriptedDenoiser("x"))
    monkeypatch.setattr(module, limit, 0.3)
    with connect(client, sent) as trickling:
        while more and not select([trickling], [], [], 0.02)[0]:
            trickling.sendall(more)
        assert received(trickling)[:12] == answer
    monkeypatch.undo()  # on a busy machine this takes longer
    assert client.post("/infill", BODY).status == 200


@pytest.fixture
def few_places(monkeypatch):
    monkeypatch.setattr(auth, "MAX_CONNECTIONS", 8)


def connect_and_keep(client):
    kept = connect(client, HEALTH)
    assert kept.recv(12) == b"HTTP/1.1 200"
    return kept


def connect_deaf(client):
    """A connection whose client requests much and reads nothing."""
    return connect(client, DOCUMENT * 5, num_received_bytes=4096)


@pytest.mark.parametrize("occupy", [connect, connect_and_keep, connect_deaf])
def test_clients_that_wait_take_no_places(start, few_places, occupy):
    client = start(ScriptedDenoiser("x"), num_sent_bytes=4096)
    with ExitStack() as stack:
        for _ in range(12):
            stack.enter_context(occupy(client))
        wait_until(lambda: client.get("/health").status == 200)
        assert [client.post("/infill", BODY).status for _ in range(9)] == [200] * 9


def test_a_client_that_does_not_read_is_closed_after_some_time(start, monkeypatch):
    client = start(ScriptedDenoiser("x"), num_sent_bytes=4096)
    monkeypatch.setattr(auth, "WRITE_SECONDS", 0.2)
    pausing = patch.object(auth.Connection, "pause_writing", autospec=True, side_effect=auth.Connection.pause_writing)
    with pausing as pause, connect_deaf(client) as deaf:
        wait_until(lambda: pause.called)
        wait_until(lambda: not start.started[-1].server_state.connections)
        assert received(deaf).count(b"HTTP/1.1 200") < 5


def test_a_connection_that_has_sent_a_key_is_not_closed_for_one_that_has_not(start, few_places):
    client = start(ScriptedDenoiser("x"), rules=OPERATOR)
    with ExitStack() as stack:
        kept = stack.enter_context(closing(http.client.HTTPConnection("127.0.0.1", client.port, timeout=TIMEOUT)))
        for _ in range(3):
            kept.request("POST", "/infill", BODY, {"X-Api-Key": client.key})
            kept.auto_open = 0
            assert json.load(kept.getresponse())["content"] == "x"
            for _ in range(20):
                stack.enter_context(connect(client))
            assert client.post("/infill", BODY).status == 200


def test_a_connection_is_closed_while_no_other_one_can_be(module_client, monkeypatch):
    monkeypatch.setattr(auth, "MAX_CONNECTIONS", 0)
    with connect(module_client) as refused:
        assert received(refused) == b""
    monkeypatch.undo()
    assert module_client.get("/health").status == 200


def test_what_is_not_http_is_refused(module_client):
    with connect(module_client, b"no HTTP\r\n\r\n") as wrong:
        head, _, body = received(wrong).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400")
    assert body == b"Invalid HTTP request received."


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        *(("GET", path, 404, "not_found_error") for path in ("/", "/infill/", "/v1", "//health", "/docs")),
        ("GET", "/..%2f..%2fetc/passwd", 404, "not_found_error"),
        ("GET", "/infill", 405, "invalid_request_error"),
        ("PUT", "/v1/completions", 405, "invalid_request_error"),
        ("POST", "/health", 405, "invalid_request_error"),
    ],
)
def test_an_unknown_path_and_a_wrong_method_are_refused(module_client, method, path, status, kind):
    reply = module_client.send(method, path)
    assert (reply.status, reply.error["code"], reply.error["type"]) == (status, status, kind)
    assert ("allow" in reply.headers) == (status == 405)


@pytest.mark.parametrize(("path", "status"), [("/health", 200), ("/infill", 405)])
def test_head_has_the_status_of_get_and_no_body(module_client, path, status):
    reply = module_client.send("HEAD", path)
    assert (reply.status, reply.body) == (status, b"")
