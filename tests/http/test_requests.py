"""Requests that no endpoint can take, and the forms of HTTP that every endpoint takes."""

import json
import socket
from contextlib import closing

import pytest
from http_server import TIMEOUT

from dg_lsp.backends.scripted import ScriptedDenoiser
from dg_lsp.http import app

HOST = b"Host: localhost\r\n"
BODY = b'{"prompt":"a = "}'


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"1",
        b'"x"',
        b"\xff\xfe",
        b'{"a":' * 100_000,
        b'{"seed":' + b"9" * 5000 + b"}",
        b"input_prefix=a",
    ],
    ids=lambda body: body[:12].decode("latin-1"),
)
def test_a_body_that_is_no_json_object_is_refused(module_client, body):
    reply = module_client.post("/infill", body)
    assert (reply.status, reply.error["type"]) == (400, "invalid_request_error")
    assert "the request body" in reply.error["message"]


@pytest.mark.parametrize("number", [b"1e999", b"9" * 400, b"NaN", b"Infinity"])
def test_numbers_that_are_not_finite_are_refused(module_client, number):
    reply = module_client.post("/infill", b'{"t_max_predict_ms":' + number + b"}")
    assert (reply.status, reply.error["param"]) == (400, "t_max_predict_ms")


def test_an_error_does_not_quote_the_invalid_value(module_client):
    body = {"input_prefix": ["secret"], "n_cmpl": "secret", "input_extra": [{"secret": 1}]}
    assert b"secret" not in module_client.post("/infill", body).body


def test_lone_surrogates_are_replaced(module_client):
    body = rb'{"input_prefix":"\ud800 = ","input_suffix":"\udfff","stop":["\ud800"]}'
    assert module_client.post("/infill", body).status == 200
    tabby = rb'{"segments":{"prefix":"a","filepath":"\ud800"},"user":"\ud800"}'
    assert module_client.post("/v1/completions", tabby).status == 200


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


def test_a_compressed_body_is_refused(module_client):
    reply = module_client.post("/infill", BODY, **{"Content-Encoding": "gzip"})
    assert (reply.status, reply.headers["accept-encoding"]) == (415, "identity")
    assert module_client.post("/infill", BODY, **{"Content-Encoding": "identity"}).status == 200


@pytest.mark.parametrize(("method", "path"), [("GET", "/infill"), ("PUT", "/v1/completions"), ("POST", "/health")])
def test_a_method_that_a_path_does_not_support_is_refused(module_client, method, path):
    reply = module_client.send(method, path)
    assert (reply.status, reply.error["code"]) == (405, 405)
    assert "allow" in reply.headers


@pytest.mark.parametrize(
    "path", ["/", "/infill/", "/v1", "/..%2f..%2fetc/passwd", "/v1/completions/x", "//health", "/docs"]
)
def test_an_unknown_path_is_refused(module_client, path):
    reply = module_client.get(path)
    assert (reply.status, reply.error["type"]) == (404, "not_found_error")


@pytest.mark.parametrize(("path", "status"), [("/health", 200), ("/infill", 405)])
def test_head_has_the_status_of_get_and_no_body(module_client, path, status):
    reply = module_client.send("HEAD", path)
    assert (reply.status, reply.body) == (status, b"")


def talk(client, data):
    """Everything that the server sends until it closes the connection."""
    with closing(socket.create_connection(("127.0.0.1", client.port), timeout=TIMEOUT)) as stream:
        stream.sendall(data)
        return b"".join(iter(lambda: stream.recv(65536), b""))


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
        b"hello\r\n\r\n",
        b"GET /health HTTP/1.1\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: a\r\nHost: localhost\r\n\r\n",
        b"POST /infill HTTP/1.1\r\n" + HOST + b"Content-Length: -1\r\n\r\n",
        b"GET /health HTTP/1.1\r\n" + HOST + b"X-Long: " + b"a" * 70_000,
    ],
)
def test_bytes_that_are_no_http_request_end_the_connection(module_client, data):
    assert talk(module_client, data).startswith(b"HTTP/1.1 400 ")


def test_requests_of_one_connection_are_answered_in_order(module_client):
    request = b"POST /v1/completions HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
    last = b"GET /health HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n"
    assert talk(module_client, 2 * request + last).count(b"HTTP/1.1 200 OK") == 3


def test_a_client_may_wait_for_100_continue(module_client):
    head = b"POST /v1/completions HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\nExpect: 100-continue\r\n\r\n"
    with closing(socket.create_connection(("127.0.0.1", module_client.port), timeout=TIMEOUT)) as stream:
        stream.sendall(head % len(BODY))
        assert stream.recv(64) == b"HTTP/1.1 100 Continue\r\n\r\n"
        stream.sendall(BODY)
        assert stream.recv(65536).startswith(b"HTTP/1.1 200 ")
