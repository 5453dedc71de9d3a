"""Requests that no endpoint can take, and the forms of HTTP that every endpoint takes."""

import http.client
import json
import socket
from contextlib import ExitStack, closing, suppress

import pytest
from gates import TIMEOUT, wait_until
from http_server import OPERATOR

from dg_lsp.backends.scripted import ScriptedDenoiser
from dg_lsp.http import app, auth

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


MESSAGE = {"role": "user", "content": "x"}
INVALID = {
    "/infill": [
        ({"input_prefix": 1}, "input_prefix"),
        ({"n_predict": "8"}, "n_predict"),
        ({"n_predict": 1.5}, "n_predict"),
        ({"n_predict": True}, "n_predict"),
        ({"stream": 1}, "stream"),
        ({"stop": 1}, "stop"),
        ({"stop": [1]}, "stop[0]"),
        ({"input_extra": [{"text": "a"}, {"text": 1}]}, "input_extra[1].text"),
        ({"input_extra": [{"filename": "a.py"}]}, "input_extra[0].text"),
        ({"input_extra": [{"text": "a"}] * 4097}, "input_extra"),
        ({"response_fields": ["/" * 2**20]}, "response_fields[0]"),
        ({"response_fields": ["content"] * 65}, "response_fields"),
        ({"stop": ["x"] * 65}, "stop"),
        ({"n_cmpl": 0}, "n_cmpl"),
        ({"n_cmpl": 99}, "n_cmpl"),
    ],
    "/v1/completions": [
        ({"prompt": [1, 2]}, "prompt[0]"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"segments": {"prefix": 1}}, "segments.prefix"),
        ({"segments": []}, "segments"),
        ({"mode": "next_edit_suggestion"}, "mode"),
    ],
    "/v1/fim/completions": [({"prompt": 1}, "prompt")],
    "/v1/chat/completions": [
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "cook", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 1}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
        ({"messages": [MESSAGE] * 4097}, "messages"),
        ({"messages": [MESSAGE], "n": 2}, "n"),
    ],
    "/feedback": [({"user_action": "x" * 100}, "user_action"), ({}, "user_action")],
    "/v1/events": [({"type": "x" * 100}, "type")],
}


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [(path, *case) for path, cases in INVALID.items() for case in cases],
    ids=lambda value: value if isinstance(value, str) else "",
)
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


def test_a_long_head_is_refused_however_it_arrives(module_client):
    for size, status in ((50_000, 200), (100_000, 431)):
        reply = module_client.post("/infill", BODY, **{"X-Long": "x" * size})
        assert reply.status == status


@pytest.mark.parametrize("header", [b"X: 1\r\n", b"X-Long: " + b"x" * 200 + b"\r\n"])
def test_all_bytes_of_a_head_count(module_client, header):
    start, rest = b"GET /health?a=1 HTTP/1.1\r\nHost: localhost\r\n", b"X:  \r\n\r\n"
    for size, status in ((app.MAX_HEAD_BYTES, 200), (app.MAX_HEAD_BYTES + 1, 431)):
        number, num_left = divmod(size - len(start) - len(rest), len(header))
        with socket.create_connection(("127.0.0.1", module_client.port), timeout=TIMEOUT) as whole:
            whole.sendall(start + number * header + rest.replace(b"  ", b" " + b"x" * (num_left + 1)))
            reply = http.client.HTTPResponse(whole)
            reply.begin()
            assert reply.status == status


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"", b""),
        (b"POST /infill HTTP/1.1\r\nHost: local", b""),
        (b"POST /infill HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{", b"HTTP/1.1 408"),
    ],
)
def test_a_request_that_trickles_ends(start, monkeypatch, sent, answer):
    client = start(ScriptedDenoiser("x"))
    monkeypatch.setattr(auth, "HEAD_SECONDS", 0.3)
    monkeypatch.setattr(app, "BODY_SECONDS", 0.3)
    with socket.create_connection(("127.0.0.1", client.port), timeout=TIMEOUT) as trickling:
        trickling.sendall(sent)
        received = b""
        with suppress(ConnectionError):
            while chunk := trickling.recv(4096):
                received += chunk
    assert received.startswith(answer)
    assert bool(received) == bool(answer)
    monkeypatch.undo()  # on a busy machine this takes longer
    assert client.post("/infill", BODY).status == 200


def test_connections_without_a_request_take_no_places(start, monkeypatch):
    monkeypatch.setattr(auth, "MAX_WAITING", 4)
    monkeypatch.setattr(auth, "GRACE_SECONDS", 0)
    client = start(ScriptedDenoiser("x"))
    with ExitStack() as stack:
        idle = [stack.enter_context(socket.create_connection(("127.0.0.1", client.port))) for _ in range(9)]
        assert client.post("/infill", BODY).status == 200
        idle[0].settimeout(TIMEOUT)
        with suppress(ConnectionError):
            assert idle[0].recv(1) == b""


def test_connections_that_are_kept_after_an_answer_take_no_places(start, monkeypatch):
    monkeypatch.setattr(auth, "MAX_WAITING", 4)
    monkeypatch.setattr(auth, "MAX_CONNECTIONS", 8)
    monkeypatch.setattr(auth, "GRACE_SECONDS", 0)
    client = start(ScriptedDenoiser("x"))
    with ExitStack() as stack:
        for _ in range(20):
            kept = stack.enter_context(socket.create_connection(("127.0.0.1", client.port), timeout=TIMEOUT))
            kept.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert kept.recv(12) == b"HTTP/1.1 200"
        assert client.post("/infill", BODY).status == 200


def deaf(stack, start, client, number):
    """Connections whose clients request much and read nothing."""
    start.started[-1]._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # connections inherit it
    found = []
    for _ in range(number):
        found.append(stack.enter_context(socket.socket()))
        found[-1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        found[-1].settimeout(TIMEOUT)
        found[-1].connect(("127.0.0.1", client.port))
        found[-1].sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 5)
    return found


def test_clients_that_do_not_read_take_no_places(start, monkeypatch):
    client = start(ScriptedDenoiser("x"))
    monkeypatch.setattr(auth, "MAX_WAITING", 4)
    monkeypatch.setattr(auth, "MAX_CONNECTIONS", 8)
    monkeypatch.setattr(auth, "GRACE_SECONDS", 0)
    with ExitStack() as stack:
        deaf(stack, start, client, 12)
        wait_until(lambda: client.get("/health").status == 200)
        assert [client.get("/health").status for _ in range(9)] == [200] * 9


def test_a_client_that_does_not_read_is_closed_after_some_time(start, monkeypatch):
    client = start(ScriptedDenoiser("x"))
    monkeypatch.setattr(auth, "WRITE_SECONDS", 0.2)
    with ExitStack() as stack:
        [one] = deaf(stack, start, client, 1)
        state = start.started[-1]._uvicorn.server_state
        wait_until(lambda: state.connections)
        wait_until(lambda: not state.connections)
        received = b""
        with suppress(ConnectionError):
            while piece := one.recv(1 << 16):
                received += piece
    assert received.count(b"HTTP/1.1 200") < 5


def test_the_number_of_requests_sent_ahead_is_limited(module_client):
    with socket.create_connection(("127.0.0.1", module_client.port), timeout=TIMEOUT) as ahead:
        ahead.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100)
        received = b""
        with suppress(ConnectionError):
            while piece := ahead.recv(1 << 16):
                received += piece
    assert received.count(b"HTTP/1.1 200") <= auth.MAX_PIPELINED + 1


def test_a_body_of_many_small_chunks_is_refused(module_client):
    head = b"POST /infill HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    with socket.create_connection(("127.0.0.1", module_client.port), timeout=TIMEOUT) as small:
        answer = b"HTTP/1.1 400"
        with suppress(ConnectionError):  # what the server has not read resets the connection
            small.sendall(head + b"1\r\n \r\n" * 40_000)
            answer = small.recv(12)
        assert answer == b"HTTP/1.1 400"
    with socket.create_connection(("127.0.0.1", module_client.port), timeout=TIMEOUT) as large:
        blanks = b"400\r\n" + b" " * 1024 + b"\r\n"
        large.sendall(head + blanks * 2000 + b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY))
        assert large.recv(12) == b"HTTP/1.1 200"


def test_a_connection_that_has_sent_a_key_is_not_closed_for_one_that_has_not(start, monkeypatch):
    client = start(ScriptedDenoiser("x"), rules=OPERATOR)
    monkeypatch.setattr(auth, "MAX_WAITING", 4)
    monkeypatch.setattr(auth, "MAX_CONNECTIONS", 8)
    monkeypatch.setattr(auth, "GRACE_SECONDS", 0)
    with ExitStack() as stack:
        kept = stack.enter_context(closing(http.client.HTTPConnection("127.0.0.1", client.port, timeout=TIMEOUT)))
        for _ in range(3):
            kept.request("POST", "/infill", BODY, {"X-Api-Key": client.key})
            kept.auto_open = 0
            assert json.load(kept.getresponse())["content"] == "x"
            for _ in range(20):
                stack.enter_context(socket.create_connection(("127.0.0.1", client.port)))
            assert client.post("/infill", BODY).status == 200


def test_more_connections_than_can_be_open_are_refused(module_client, monkeypatch):
    monkeypatch.setattr(auth, "MAX_CONNECTIONS", 0)
    with socket.create_connection(("127.0.0.1", module_client.port), timeout=TIMEOUT) as refused:
        reply = http.client.HTTPResponse(refused)
        reply.begin()
        assert (reply.status, reply.getheader("retry-after")) == (503, "1")
        assert json.loads(reply.read())["error"]["type"] == "unavailable_error"
    monkeypatch.undo()
    assert module_client.get("/health").status == 200


def test_many_clients_at_once_are_all_answered(start, monkeypatch):
    monkeypatch.setattr(auth, "MAX_WAITING", 4)
    monkeypatch.setattr(auth, "GRACE_SECONDS", TIMEOUT)
    client = start(ScriptedDenoiser("x"))
    with ExitStack() as stack:
        address = ("127.0.0.1", client.port)
        clients = [stack.enter_context(socket.create_connection(address, timeout=TIMEOUT)) for _ in range(20)]
        for one in clients:
            one.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert [one.recv(12) for one in clients] == [b"HTTP/1.1 200"] * 20


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", 400),
        (b"POST /infill HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST /infill HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"GET /" + b"a" * 100_000, 431),
        (b"POST /infill HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
    ],
)
def test_what_is_no_http_gets_an_error_in_json_and_is_closed(module_client, sent, status):
    with socket.create_connection(("127.0.0.1", module_client.port), timeout=TIMEOUT) as broken:
        broken.sendall(sent)
        reply = http.client.HTTPResponse(broken)
        reply.begin()
        assert (reply.status, reply.getheader("content-type")) == (status, "application/json")
        assert json.loads(reply.read())["error"]["code"] == status
        assert broken.recv(1) == b""


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
