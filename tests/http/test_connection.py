"""Bytes as they come: no HTTP, too much of it, too slowly, or by clients that do not read."""

import json
import socket
import time
from contextlib import closing, suppress

import pytest
from chatty import chatty

from dg_lsp.backends.scripted import ScriptedDenoiser
from dg_lsp.http import connection

TIMEOUT = 30
HOST = b"Host: localhost\r\n"
BODY = b'{"prompt":"a = "}'
CHUNKED = b"POST /v1/completions HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"


def post(body, *more, length=None):
    head = b"".join((b"POST /v1/completions HTTP/1.1\r\n", HOST, *more))
    return head + b"Content-Length: %d\r\n\r\n" % (len(body) if length is None else length) + body


def connect(client):
    return closing(socket.create_connection(("127.0.0.1", client.port), timeout=TIMEOUT))


def read(stream, *, is_head_only=False):
    """One answer: its status, headers and body."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += (byte := stream.recv(1))
        assert byte, head
    first, *lines = head.decode("latin-1").split("\r\n")[:-2]
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    length = 0 if is_head_only else int(headers["content-length"])
    body = b""
    while len(body) < length:
        body += stream.recv(length - len(body))
    return int(first.split()[1]), headers, body


def error_of(client, data):
    """The error object that the bytes are answered with, on a connection that ends after it."""
    with connect(client) as stream:
        stream.sendall(data)
        status, headers, body = read(stream)
        assert headers["content-type"] == "application/json"
        error = json.loads(body)["error"]
        assert error["code"] == status
        if headers.get("connection") == "close":
            assert stream.recv(1) == b""
        return error


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),  # TLS
        (b"hello\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\nHost: a\r\nHost: localhost\r\n\r\n", 400),
        (b"GET /health?\xff HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"POST /infill HTTP/1.1\r\n" + HOST + b"Content-Length: -1\r\n\r\n", 400),
        (b"POST /infill HTTP/1.1\r\n" + HOST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (CHUNKED + b"zz\r\n", 400),
        (b"POST /infill HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: gzip\r\n\r\n", 501),
        (b"CONNECT a:1 HTTP/1.1\r\n" + HOST + b"\r\n", 404),
        (b"OPTIONS /infill HTTP/1.1\r\n" + HOST + b"\r\n", 405),
        (post(BODY, b"Content-Encoding: gzip\r\n"), 415),
        (b"POST /infill HTTP/1.1\r\n" + HOST + b"Content-Length: 9999999999999999\r\n\r\n", 413),
    ],
)
def test_what_is_no_request_of_ours_is_told_as_json(module_client, data, status):
    assert error_of(module_client, data)["code"] == status


@pytest.mark.parametrize(("head", "status"), [(b"GET /", 414), (b"GET /health HTTP/1.1\r\n" + HOST + b"X-Long: ", 431)])
def test_a_head_without_an_end_is_not_read_to_it(module_client, head, status):
    with connect(module_client) as stream:
        stream.sendall(head + b"a" * connection.MAX_HEAD_BYTES)
        answered, _, body = read(stream)
    assert (answered, json.loads(body)["error"]["type"]) == (status, "invalid_request_error")


@pytest.mark.parametrize(("path", "status"), [("/health", 200), ("/infill", 405)])
def test_head_says_what_get_would_say_and_sends_nothing(module_client, path, status):
    with connect(module_client) as stream:
        stream.sendall(b"HEAD %b HTTP/1.1\r\n" % path.encode() + HOST + b"Connection: close\r\n\r\n")
        assert read(stream, is_head_only=True)[0] == status
        assert stream.recv(1) == b""


@pytest.mark.parametrize(
    "data",
    [
        post(BODY),
        CHUNKED + b"1\r\n{\r\n10\r\n" + BODY[1:] + b"\r\n0\r\n\r\n",
        b"POST /v1/completions HTTP/1.0\r\nContent-Length: 17\r\n\r\n" + BODY,
        post(BODY, b"Content-Encoding: identity\r\n"),
    ],
)
def test_bodies_come_as_http_lets_them(module_client, data):
    with connect(module_client) as stream:
        stream.sendall(data)
        status, _, body = read(stream)
    assert (status, json.loads(body)["choices"][0]["text"]) == (200, "total")


def test_who_waits_to_be_asked_for_the_body_is_asked(module_client):
    with connect(module_client) as stream:
        stream.sendall(post(b"", b"Expect: 100-continue\r\n", length=len(BODY)))
        assert stream.recv(64) == b"HTTP/1.1 100 Continue\r\n\r\n"
        stream.sendall(BODY)
        assert read(stream)[0] == 200


def test_a_body_longer_than_it_says_is_answered_as_far_as_it_goes(module_client):
    with connect(module_client) as stream:
        stream.sendall(post(BODY + b"surplus\r\n\r\n", length=len(BODY)))
        assert read(stream)[0] == 200
        assert read(stream)[0] == 400
        assert stream.recv(1) == b""


def test_requests_before_the_last_answer_are_answered_in_turn(module_client):
    with connect(module_client) as stream:
        stream.sendall(post(BODY) * 2 + b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n")
        assert [read(stream)[0] for _ in range(3)] == [200] * 3


@pytest.mark.parametrize("said", [b"GET /hea", b"POST /infill HTTP/1.1\r\nHost: loc"])
def test_a_head_that_does_not_come_is_not_waited_for(start, monkeypatch, said):
    client = start(ScriptedDenoiser("x"))
    monkeypatch.setattr(connection, "HEAD_SECONDS", 0.5)  # long enough to begin in, on a busy machine too
    assert error_of(client, said)["code"] == 408


def test_who_drips_a_head_gets_no_more_time_for_it(start, monkeypatch):
    client = start(ScriptedDenoiser("x"))
    with connect(client) as stream:
        stream.sendall(b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n")
        assert read(stream)[0] == 200  # and its second request drips
        monkeypatch.setattr(connection, "HEAD_SECONDS", 0.2)
        began = time.monotonic()
        stream.settimeout(0.02)
        answer = b""
        while not answer:
            assert time.monotonic() - began < TIMEOUT
            stream.sendall(b"G")
            with suppress(TimeoutError):
                answer = stream.recv(4096)
        assert answer.startswith(b"HTTP/1.1 408 ")


def test_who_says_nothing_is_let_go(start, monkeypatch):
    client = start(ScriptedDenoiser("x"))
    monkeypatch.setattr(connection, "HEAD_SECONDS", 0.05)
    with connect(client) as stream:
        assert stream.recv(1) == b""


def test_who_waits_for_the_model_is_not_slow(start, monkeypatch, gated):
    denoiser = gated("x")
    client = start(denoiser)
    monkeypatch.setattr(connection, "HEAD_SECONDS", 0.5)
    monkeypatch.setattr(connection, "LINGER_SECONDS", 0.5)
    with connect(client) as stream:
        stream.sendall(post(BODY))
        assert denoiser.is_inside.wait(TIMEOUT)
        time.sleep(0.7)
        denoiser.go_on.set()
        assert read(stream)[0] == 200
        time.sleep(0.7)
        stream.sendall(post(BODY))  # and may ask again later
        assert read(stream)[0] == 200


def test_the_rest_of_a_body_that_is_too_long_is_taken_for_a_while(start, monkeypatch):
    """Closed at once, a client that is still sending would see a broken connection and no answer."""
    monkeypatch.setattr(connection, "LINGER_SECONDS", TIMEOUT)
    client = start(ScriptedDenoiser("x"), http={"max_body_bytes": 1024})
    long = b'{"prompt":"' + b"a" * 2_000_000 + b'"}'
    with connect(client) as stream:
        stream.sendall(post(long))
        assert read(stream)[0] == 413
        stream.sendall(b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n")
        assert read(stream)[0] == 200
    monkeypatch.setattr(connection, "LINGER_SECONDS", 0.5)
    with connect(client) as stream:
        began = time.monotonic()
        stream.sendall(post(b"", length=10_000))
        assert read(stream)[0] == 413
        assert stream.recv(1) == b""
        assert time.monotonic() - began > 0.4


def test_who_reads_nothing_is_let_go(start, monkeypatch):
    monkeypatch.setattr(connection, "WRITE_SECONDS", 1.0)
    denoiser = chatty(" ".join(map(str, range(1000))), tokens_per_step=1)
    client = start(denoiser)
    [(listening, _)] = start.started
    listening._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # its connections inherit it
    body = json.dumps({"messages": [{"role": "user", "content": "hi"}], "stream": True, "diffusing": True}).encode()
    with socket.socket() as stream:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stream.settimeout(TIMEOUT)
        stream.connect(("127.0.0.1", client.port))
        stream.sendall(post(body).replace(b"/v1/completions", b"/v1/chat/completions"))
        deadline = time.monotonic() + TIMEOUT
        while not denoiser.num_steps or listening._server.server_state.connections:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        with suppress(ConnectionError):
            assert b"[DONE]" not in b"".join(iter(lambda: stream.recv(65536), b""))


def test_one_connection_too_many_is_asked_to_come_again(start, monkeypatch):
    monkeypatch.setattr(connection, "MAX_CONNECTIONS", 3)
    client = start(ScriptedDenoiser("x"))
    deadline = time.monotonic() + TIMEOUT
    with connect(client), connect(client), connect(client):
        while (reply := client.get("/health")).status == 200:  # those three may not be there yet
            assert time.monotonic() < deadline
        assert (reply.status, reply.headers["retry-after"]) == (503, "1")
        assert reply.error["type"] == "unavailable_error"
    while client.get("/health").status != 200:
        assert time.monotonic() < deadline
