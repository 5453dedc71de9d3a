"""Waiting, disconnecting, limits and failures.

An error is an error object, never an empty completion, which plugins would cache for the position.
"""

import http.client
import json
import os
import socket
import struct
import sys
import threading
from contextlib import closing
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from chatty import HI, chatty
from gates import Stepping, free_port
from http_server import (
    GAP,
    OPERATOR,
    TIMEOUT,
    Client,
    connect,
    engine_of,
    metric,
    packed,
    wait_for_active,
    wait_until,
)
from scripted import ScriptedDenoiser

from dg_lsp.engine.audit import read_log
from dg_lsp.errors import BackendError, ModelMemoryError, ModelUnsupportedError, RemoteError, RequestError
from dg_lsp.http.auth import AccessRules

SECRET = "never-in-a-response"
TEXT = "abcdefgh"
NUM_STEPS = len(TEXT) + 1


def post_segments(client, user, prefix):
    segments = {"prefix": prefix, "suffix": "", "filepath": "a.py"}
    return client.post("/v1/completions", {"language": "python", "segments": segments, "user": user})


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "stream"])
def test_a_disconnect_stops_the_model_within_a_step(start, is_streamed):
    denoiser = Stepping(TEXT, tokens_per_step=1)
    client = start(denoiser)
    body = {"input_prefix": "a = ", "stream": is_streamed, "diffusing": True}
    with connect(client, packed("/infill", body)) as connection:
        wait_for_active(client, 1)
        if is_streamed:
            denoiser.allowed.release()
            assert b"200 OK" in connection.recv(4096)
    wait_until(lambda: metric(client, "dg_lsp_disconnects_total") == 1)
    denoiser.allowed.release(2 * NUM_STEPS)
    assert client.post("/infill", GAP).tree["content"] == TEXT
    assert denoiser.num_steps <= is_streamed + 1 + NUM_STEPS


def test_too_many_waiting_requests_are_refused_with_a_retry_time_and_logged(start, gated, occupy, pool, tmp_path):
    log = tmp_path / "audit.jsonl"
    denoiser = gated("x")
    client = start(denoiser, rules=AccessRules(max_queued=2), privacy={"audit_log": str(log)})
    with occupy(denoiser, client):
        waiting = pool.submit(client.post, "/infill", GAP)
        wait_for_active(client, 2)
        reply = client.post("/infill", {**GAP, "language": "go"})
        assert (reply.status, reply.error["type"]) == (503, "unavailable_error")
        assert int(reply.headers["retry-after"]) > 0
        wait_until(log.exists)
        [record], _, _ = read_log(log)
        assert (record.endpoint, record.outcome, record.reason) == ("/infill", "refused", "503")
        assert (record.task, record.language, record.steps) == ("line-end", "go", 0)
    assert waiting.result(TIMEOUT).tree["content"] == "x"
    assert client.post("/infill", GAP).status == 200


@pytest.fixture
def start_team(start):
    """`start_team(denoiser)` -> the clients of one server by name, each with a key of its own."""

    def call(denoiser):
        keys = {name: f"key-of-{name}" for name in ("operator", "alice", "bob")}
        port = start(denoiser, rules=AccessRules(keys)).port
        return SimpleNamespace(**{name: Client(port, key) for name, key in keys.items()})

    return call


def test_one_key_cannot_take_all_places(start_team, gated, occupy, pool, monkeypatch):
    monkeypatch.setattr("dg_lsp.http.auth.MAX_PER_CLIENT", 1)
    denoiser = gated("x")
    team = start_team(denoiser)
    with occupy(denoiser, team.alice):
        reply = team.alice.post("/infill", GAP)
        assert (reply.status, reply.error["type"]) == (429, "rate_limit_error")
        assert int(reply.headers["retry-after"]) > 0
        of_bob = pool.submit(team.bob.post, "/infill", GAP)
        wait_for_active(team.operator, 2)
    assert of_bob.result(TIMEOUT).status == 200
    assert team.alice.post("/infill", GAP).status == 200


PROMPT = {"input_prefix": "password = 'sesame'\n" * 3, "input_suffix": "\n"}


def num_cached(reply):
    return reply.tree["timings"]["cache_n"]


CHAT = {"messages": [{"role": "system", "content": "You are terse. " * 9}, {"role": "user", "content": "a"}]}


@pytest.mark.parametrize(
    ("model", "path", "body"),
    [
        pytest.param(ScriptedDenoiser("x"), "/infill", PROMPT, id="slots for several prompts"),
        pytest.param(chatty("yes", num_slots=1), "/v1/chat/completions", CHAT, id="the same system prompt"),
    ],
)
def test_clients_with_keys_do_not_see_each_others_cached_prompts(start_team, model, path, body):
    team = start_team(model)
    first = num_cached(team.alice.post(path, body))
    num_decoded = model.num_prefilled
    assert num_cached(team.alice.post(path, body)) > first
    assert model.num_prefilled < 2 * num_decoded
    assert num_cached(team.bob.post(path, body)) == first
    assert model.num_prefilled >= 2 * num_decoded, "the model decodes the whole prompt again"


@pytest.mark.parametrize("is_own", [True, False] if sys.platform == "linux" else [False])
def test_without_keys_the_user_of_the_server_is_a_client_and_each_other_connection(start, monkeypatch, is_own):
    if not is_own:
        monkeypatch.setattr(os, "getuid", lambda: -1, raising=False)
    client = start(ScriptedDenoiser("x"))
    port = free_port()

    def connect(port):
        return closing(http.client.HTTPConnection("127.0.0.1", client.port, source_address=("127.0.0.1", port)))

    def cached(connection):
        connection.request("POST", "/infill", json.dumps(PROMPT))
        return json.load(connection.getresponse())["timings"]["cache_n"]

    with connect(port) as alice, connect(0) as bob:
        first = cached(alice)
        assert cached(alice) > first
        assert (cached(bob) > first) is is_own
        alice.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # no TIME_WAIT
    with connect(port) as reused:
        assert (cached(reused) > first) is is_own, "a connection from the port of one that is closed"


def test_the_table_of_sockets_is_not_read_for_a_client_with_a_key(start_team, monkeypatch):
    """Reading it takes 38 ms on a machine with 5,000 connections, and all other clients wait meanwhile."""
    monkeypatch.setattr("dg_lsp.http.auth.is_of_this_user", read := Mock(return_value=True))
    team = start_team(ScriptedDenoiser("x"))
    assert team.alice.post("/infill", GAP).status == 200
    assert not read.called


def test_totals_of_all_clients_are_for_the_operator(start_team, start):
    team = start_team(ScriptedDenoiser("x"))
    team.alice.post("/infill", PROMPT)
    without_key = start(ScriptedDenoiser("x"))
    without_key.post("/infill", PROMPT)
    for client, is_operator in ((team.operator, True), (team.bob, False), (without_key, False)):
        reply = client.get("/metrics")
        assert metric(client, 'dg_lsp_requests_total{path="/infill",status="200"}') == 1
        for name in (b"tokens", b"steps", b"completions", b"stage_seconds", b"feedback"):
            assert (b"# TYPE dg_lsp_" + name in reply.body) is is_operator
        assert [set(slot) for slot in client.get("/slots").tree] == [{"id", "n_ctx", "is_processing"}] * 4


def test_a_client_that_does_not_read_does_not_keep_its_place(start, monkeypatch):
    monkeypatch.setattr("dg_lsp.http.auth.WRITE_SECONDS", TIMEOUT)  # on a busy machine the model takes longer
    denoiser = chatty(" ".join(map(str, range(300))), tokens_per_step=1)
    client = start(denoiser, rules=AccessRules(max_queued=1), num_sent_bytes=4096)
    path, body = "/v1/chat/completions", {**HI, "stream": True, "diffusing": True, "t_max_predict_ms": 600_000}
    answered = f'dg_lsp_requests_total{{path="{path}",status="200"}}'
    with connect(client, packed(path, body), num_received_bytes=4096):
        wait_until(lambda: denoiser.num_steps > 0 and metric(client, "dg_lsp_active_requests") == 0)
        assert metric(client, answered) == 0  # still sending
        assert client.post(path, {**body, "stream": False, "max_tokens": 1}).status == 200
    wait_until(lambda: metric(client, answered) == 2)


def test_a_newer_request_for_a_document_replaces_the_older_one(start, gated, pool):
    denoiser = gated("x")
    client = start(denoiser, rules=OPERATOR)
    older = pool.submit(post_segments, client, "alice", "a")
    assert denoiser.is_inside.wait(TIMEOUT)
    of_bob = pool.submit(post_segments, client, "bob", "a")
    wait_for_active(client, 2)
    newer = pool.submit(post_segments, client, "alice", "ab")
    reply = older.result(TIMEOUT)
    assert reply.status == 499  # OpenAI's client retries after 409, 429 and every 5xx
    assert reply.error["type"] == "cancelled_error"
    denoiser.go_on.set()
    assert [of_bob.result(TIMEOUT).status, newer.result(TIMEOUT).status] == [200, 200]


def test_clients_do_not_replace_each_others_requests(start_team, start, gated, pool, monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: -1, raising=False)  # connections of another user
    denoisers = gated("x"), gated("x")
    team, without_key = start_team(denoisers[0]), start(denoisers[1])
    for denoiser, clients in zip(denoisers, ((team.alice, team.bob), (without_key, without_key)), strict=True):
        older = pool.submit(post_segments, clients[0], "same", "a")
        assert denoiser.is_inside.wait(TIMEOUT)
        newer = pool.submit(post_segments, clients[1], "same", "ab")
        wait_for_active(clients[0], 2)
        denoiser.go_on.set()
        assert [older.result(TIMEOUT).status, newer.result(TIMEOUT).status] == [200, 200]


def test_the_deadline_includes_waiting_for_the_model(start, gated, occupy):
    denoiser = gated("x")
    client = start(denoiser)
    with occupy(denoiser, client):
        reply = client.post("/infill", {**GAP, "t_max_predict_ms": 20})
        assert (reply.status, reply.error["type"]) == (504, "timeout_error")


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
    denoiser = ScriptedDenoiser("x")
    denoiser.predict = Mock(side_effect=error)
    client = start(denoiser)
    for path, body in (("/infill", GAP), ("/v1/fim/completions", {"prompt": "a = ", "stream": True})):
        reply = client.post(path, body)
        assert (reply.status, reply.error["message"]) == (status, message)
        assert ("retry-after" in reply.headers) == (status == 503)
    del denoiser.predict
    assert client.post("/infill", GAP).status == 200
    assert SECRET not in "".join(capfd.readouterr())


def test_an_idle_model_is_unloaded_and_loaded_by_the_next_request(start):
    denoiser = ScriptedDenoiser("x")
    client = start(denoiser, model={"idle_seconds": 0.01})
    wait_until(lambda: client.get("/props").tree["is_sleeping"])
    wait_until(lambda: denoiser.is_closed)
    assert client.get("/health").status == 200
    assert client.post("/infill", GAP).tree["content"] == "x"


def test_metrics_count_requests_completions_and_steps(start):
    fill = lambda prefix, _suffix: "x" if prefix == "a = " else ""  # noqa: E731
    client = start(ScriptedDenoiser(fill, tokens_per_step=1), rules=OPERATOR)
    for body in (GAP, {"input_prefix": "b = "}, {"input_prefix": 1}):
        client.post("/infill", body)
    client.get("/nowhere/never-a-label")
    reply = client.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    rows = {
        'dg_lsp_requests_total{path="/infill",status="200"}': 2,
        'dg_lsp_requests_total{path="/infill",status="400"}': 1,
        'dg_lsp_requests_total{path="other",status="404"}': 1,
        'dg_lsp_request_seconds_count{path="/infill"}': 3,
        'dg_lsp_request_seconds_bucket{le="+Inf",path="/infill"}': 3,
        "dg_lsp_steps_total": 3,
        'dg_lsp_completions_total{decoder="diffusion",shown="yes"}': 1,
        'dg_lsp_completions_total{decoder="diffusion",shown="no"}': 1,
        'dg_lsp_tokens_total{kind="output"}': 3,
    }
    assert {row: metric(client, row) for row in rows} == rows
    assert b"never-a-label" not in reply.body
