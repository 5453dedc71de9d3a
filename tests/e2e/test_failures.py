"""Missing, slow and failing models: the session continues, each error is shown once, and no log quotes a buffer."""

import json
import os
import time

import pytest

SECRET = "never-in-a-log"
PATIENT = {"completion": {"deadline_ms": 60_000}}


@pytest.mark.parametrize(
    ("scenario", "message"),
    [
        pytest.param("missing", "no model named 'nowhere'; try dg-mini", id="missing model"),
        pytest.param("broken", "half.gguf ends too early; fetch it again", id="broken model"),
        pytest.param("crash", "RuntimeError", id="anything else"),
    ],
)
def test_the_session_continues_without_a_model(start, scenario, message):
    client = start(scenario)
    assert "inlineCompletionProvider" in client.handshake(options=PATIENT)["capabilities"]
    client.open("\n")
    early = client.complete(0, 0)
    client.wait_log(message)
    assert client.items(early) == []
    assert [client.items(client.complete(0, 0)) for _ in range(3)] == [[], [], []]
    [shown] = client.told("window/showMessage")
    assert shown["type"] == 1
    assert message in shown["message"]
    assert len(client.told("window/logMessage")) == 1
    assert client.leave() == 0
    client.check()
    assert SECRET not in client.stderr + json.dumps(client.messages)


@pytest.mark.parametrize(
    ("scenario", "message"),
    [
        pytest.param("backend-error", "the graph failed; lower gpu_layers", id="an error of ours"),
        pytest.param("bug", "ValueError", id="any other error"),
    ],
)
def test_a_failing_request_is_logged_and_answered_with_an_empty_list(start, scenario, message):
    client = start(scenario)
    client.handshake(options=PATIENT)
    client.open("secret_text = \n")
    assert client.items(client.complete(0, 14)) == []
    assert client.wait_log(message)["type"] == 1
    assert client.items(client.complete(0, 14)) == []
    assert client.told("window/showMessage") == []
    assert client.leave() == 0
    client.check()
    everything = client.stderr + json.dumps(client.messages)
    assert SECRET not in everything
    assert "secret_text" not in everything


def test_a_request_before_the_model_is_ready_waits_for_it(start, tmp_path):
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    client = start("fill", DG_TEST_GATE=str(gate))
    client.handshake(options=PATIENT)
    client.open("\n")
    early = client.complete(0, 0)
    client.answer(client.request("textDocument/unheardOf", {}))  # a later request, so the early one has arrived
    assert client.answers(early) == []
    gate.write_bytes(b"")
    assert len(client.items(early)) == 1
    assert client.leave() == 0
    client.check()


def test_a_request_waits_for_the_model_until_its_deadline(start, tmp_path):
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    client = start("fill", DG_TEST_GATE=str(gate))
    client.handshake(options={"completion": {"deadline_ms": 200}})
    client.open("\n")
    began = time.monotonic()
    assert client.items(client.complete(0, 0)) == []
    assert time.monotonic() - began >= 0.2
    gate.write_bytes(b"")
    client.wait_log("ready")
    assert client.leave() == 0
    client.check()


def test_requests_can_be_cancelled_while_the_model_loads(start, tmp_path):
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    client = start("fill", DG_TEST_GATE=str(gate))
    client.handshake(options=PATIENT)
    client.open("\n")
    first, second, third = (client.complete(0, 0) for _ in range(3))
    assert client.answer(first)["error"]["code"] == client.answer(second)["error"]["code"] == client.CANCELLED
    client.cancel(third)
    assert client.answer(third)["error"]["code"] == client.CANCELLED
    gate.write_bytes(b"")
    client.wait_log("ready")
    assert len(client.items(client.complete(0, 0))) == 1
    assert client.leave() == 0
    client.check()


def test_a_request_is_answered_at_its_deadline(start, steps):
    """The completion takes more than a second; the deadline ends it."""
    client = start("slow")
    client.handshake(options={"completion": {"deadline_ms": 600}})
    client.wait_log("ready")
    client.open("s\n")
    assert isinstance(client.items(client.complete(0, 1)), list)
    assert 1 <= len(steps()) < 30
    assert client.leave() == 0
    client.check()
