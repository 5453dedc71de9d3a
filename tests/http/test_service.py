"""Waiting, disconnecting, limits and failures. An error is an error object, never an empty completion."""

import json
import socket
import threading
from types import SimpleNamespace

import pytest
from chatty import HI, chatty
from http_server import (
    GAP,
    TIMEOUT,
    engine_of,
    metric,
    raw,
    wait_for_active,
    wait_for_disconnect,
    wait_until,
)

from dg_lsp.backends.scripted import ScriptedDenoiser
from dg_lsp.errors import BackendError, ModelMemoryError, ModelUnsupportedError, RemoteError, RequestError
from dg_lsp.http.auth import AccessRules
from dg_lsp.http.service import client_address

SECRET = "never-in-a-response"
TEXT = "abcdefgh"
NUM_STEPS = len(TEXT) + 1


def post_segments(client, user, prefix):
    segments = {"prefix": prefix, "suffix": "", "filepath": "a.py"}
    return client.post("/v1/completions", {"language": "python", "segments": segments, "user": user})


def test_a_disconnect_stops_the_model_within_a_step(start, gated):
    denoiser = gated(TEXT, tokens_per_step=1)
    client = start(denoiser)
    connection = raw(client, b'{"input_prefix":"a = "}')
    assert denoiser.is_inside.wait(TIMEOUT)
    connection.close()
    wait_for_disconnect(client)
    denoiser.go_on.set()
    assert client.post("/infill", GAP).tree["content"] == TEXT
    assert denoiser.num_steps == 1 + NUM_STEPS


def test_too_many_waiting_requests_are_refused_with_a_retry_time(start, gated, pool):
    denoiser = gated("x")
    client = start(denoiser, rules=AccessRules(max_queued=2))
    replies = [pool.submit(client.post, "/infill", GAP) for _ in range(2)]
    wait_for_active(client, 2)
    reply = client.post("/infill", GAP)
    assert (reply.status, reply.error["type"]) == (503, "unavailable_error")
    assert int(reply.headers["retry-after"]) > 0
    denoiser.go_on.set()
    assert [one.result(TIMEOUT).tree["content"] for one in replies] == ["x", "x"]
    assert client.post("/infill", GAP).status == 200


def test_one_other_machine_cannot_take_all_places(start, gated, pool, monkeypatch):
    monkeypatch.setattr("dg_lsp.http.service.client_address", lambda http: http.headers.get("x-test-address", ""))
    monkeypatch.setattr("dg_lsp.http.service.MAX_PER_CLIENT", 1)
    denoiser = gated("x")
    client = start(denoiser)

    def post(prefix, address=""):
        return client.post("/infill", {"input_prefix": prefix}, **{"X-Test-Address": address})

    first = pool.submit(post, "a", "10.0.0.1")
    assert denoiser.is_inside.wait(TIMEOUT)
    reply = post("b", "10.0.0.1")
    assert (reply.status, reply.error["type"]) == (429, "rate_limit_error")
    assert int(reply.headers["retry-after"]) > 0
    others = [pool.submit(post, "c", "10.0.0.2"), pool.submit(post, "d"), pool.submit(post, "e")]
    wait_for_active(client, 4)
    denoiser.go_on.set()
    assert [one.result(TIMEOUT).status for one in (first, *others)] == [200] * 4
    assert post("b", "10.0.0.1").status == 200


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", ""),
        ("::1", ""),
        ("::ffff:127.0.0.1", ""),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("fe80::1%eth0", "fe80::1%eth0"),
    ],
)
def test_clients_of_this_machine_are_one_client(host, address):
    assert client_address(SimpleNamespace(client=SimpleNamespace(host=host))) == address


def test_a_client_that_does_not_read_does_not_keep_its_place(start):
    denoiser = chatty(" ".join(map(str, range(1000))), tokens_per_step=1)
    client = start(denoiser, rules=AccessRules(max_queued=1))
    [server] = start.started
    server._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # connections inherit it
    body = {**HI, "stream": True, "diffusing": True}
    with socket.socket() as stream:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stream.connect(("127.0.0.1", client.port))
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
        data = json.dumps(body).encode()
        stream.sendall(head % len(data) + data)
        wait_until(lambda: denoiser.num_steps > 0 and metric(client, "dg_lsp_active_requests") == 0)
        assert metric(client, 'dg_lsp_requests_total{path="/v1/chat/completions",status="200"}') == 0  # still sending
        assert client.post("/v1/chat/completions", {**body, "stream": False, "max_tokens": 1}).status == 200
    wait_until(lambda: metric(client, 'dg_lsp_requests_total{path="/v1/chat/completions",status="200"}') == 2)


def test_a_newer_request_for_a_document_replaces_the_older_one(start, gated, pool):
    denoiser = gated("x")
    client = start(denoiser)
    older = pool.submit(post_segments, client, "one", "a")
    assert denoiser.is_inside.wait(TIMEOUT)
    other = pool.submit(post_segments, client, "two", "a")
    wait_for_active(client, 2)
    newer = pool.submit(post_segments, client, "one", "ab")
    reply = older.result(TIMEOUT)
    assert reply.status == 499  # OpenAI's client retries after 409, 429 and every 5xx
    assert reply.error["type"] == "cancelled_error"
    denoiser.go_on.set()
    assert [one.result(TIMEOUT).status for one in (other, newer)] == [200, 200]


def test_the_deadline_includes_waiting_for_the_model(start, gated, pool):
    denoiser = gated("x")
    client = start(denoiser)
    first = pool.submit(client.post, "/infill", GAP)
    assert denoiser.is_inside.wait(TIMEOUT)
    reply = client.post("/infill", {**GAP, "t_max_predict_ms": 20})
    assert (reply.status, reply.error["type"]) == (504, "timeout_error")
    denoiser.go_on.set()
    assert first.result(TIMEOUT).status == 200


def test_health_and_requests_return_503_while_the_model_loads(start):
    opened = threading.Event()
    client = start(open_engine=engine_of(ScriptedDenoiser("x"), opened), is_waited=False)
    loading = b'{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}'
    for reply in (client.get("/health"), client.post("/infill", GAP), client.get("/v1/models")):
        assert (reply.status, reply.body, reply.headers["retry-after"]) == (503, loading, "1")
    assert client.get("/metrics").status == 200
    opened.set()
    assert client.wait_ready().get("/health").body == b'{"status":"ok"}'


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (RequestError("send less"), 400, "send less"),
        (ModelUnsupportedError("use a chat model"), 501, "use a chat model"),
        (ModelMemoryError("lower num_slots"), 503, "lower num_slots"),
        (RemoteError("start it"), 503, "start it"),
        (BackendError("lower gpu_layers"), 500, "lower gpu_layers"),
        (ValueError(SECRET), 500, "internal error: ValueError"),
    ],
)
def test_an_error_of_the_engine_has_a_status_and_the_next_request_works(start, capfd, error, status, message):
    class Failing(ScriptedDenoiser):
        fails = True

        def predict(self, *args, **kwargs):
            if self.fails:
                raise error
            return super().predict(*args, **kwargs)

    denoiser = Failing("x")
    client = start(denoiser)
    reply = client.post("/infill", GAP)
    assert (reply.status, reply.error["message"]) == (status, message)
    assert ("retry-after" in reply.headers) == (status == 503)
    denoiser.fails = False
    assert client.post("/infill", GAP).status == 200
    assert SECRET not in "".join(capfd.readouterr())


def test_an_idle_model_is_unloaded_and_loaded_by_the_next_request(start):
    denoiser = ScriptedDenoiser("x")
    client = start(denoiser, model={"idle_seconds": 0.01})
    assert client.post("/infill", GAP).tree["content"] == "x"
    wait_until(lambda: client.get("/props").tree["is_sleeping"])
    wait_until(lambda: denoiser.is_closed)
    assert client.get("/health").status == 200
    assert client.post("/infill", GAP).tree["content"] == "x"


def test_metrics_count_requests_completions_and_steps(start):
    client = start(ScriptedDenoiser("x", tokens_per_step=1))
    client.post("/infill", GAP)
    client.post("/infill", {"input_prefix": 1})
    client.get("/nowhere/never-a-label")
    reply = client.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    rows = {
        'dg_lsp_requests_total{path="/infill",status="200"}': 1,
        'dg_lsp_requests_total{path="/infill",status="400"}': 1,
        'dg_lsp_requests_total{path="other",status="404"}': 1,
        'dg_lsp_request_seconds_count{path="/infill"}': 2,
        'dg_lsp_request_seconds_bucket{le="+Inf",path="/infill"}': 2,
        "dg_lsp_steps_total": 2,
        'dg_lsp_completions_total{decoder="diffusion",shown="yes"}': 1,
        'dg_lsp_tokens_total{kind="output"}': 2,
    }
    assert {row: metric(client, row) for row in rows} == rows
    assert b"never-a-label" not in reply.body
