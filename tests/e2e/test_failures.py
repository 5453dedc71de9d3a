"""Missing, slow and failing models: the session continues, each error is shown once, and no log quotes a buffer."""

import json
import os
from contextlib import suppress

import pytest
from language_client import span

SECRET = "never-in-a-log"


@pytest.mark.parametrize(
    ("scenario", "message"),
    [
        pytest.param("missing", "no model named 'nowhere'; try dg-mini", id="missing model"),
        pytest.param("crash", "RuntimeError", id="anything else"),
    ],
)
def test_the_session_continues_without_a_model(session, scenario, message):
    client = session(scenario)
    early = client.complete(0, 0)
    client.wait_log(message)
    assert client.items(early) == client.texts(0, 0) == client.texts(0, 0) == []
    [shown] = client.received("window/showMessage")
    assert shown["type"] == 1
    assert message in shown["message"]
    assert len(client.logged()) == 1
    assert SECRET not in json.dumps(client.messages)


@pytest.mark.parametrize(
    ("scenario", "message"),
    [
        pytest.param("backend-error", "the graph failed; lower gpu_layers", id="an error of ours"),
        pytest.param("bug", "ValueError", id="any other error"),
    ],
)
def test_a_failing_request_is_logged_and_answered_with_an_empty_list(session, scenario, message):
    client = session(scenario, "secret_text = \n")
    assert client.texts(0, 14) == []
    assert client.wait_log(message)["type"] == 1
    assert client.texts(0, 14) == []
    assert client.shown() == []
    assert SECRET not in json.dumps(client.messages)
    assert "secret_text" not in json.dumps(client.messages)


def test_requests_wait_for_the_model_and_can_be_cancelled_meanwhile(session, gate):
    client = session("fill", env=gate.env)
    replaced, cancelled = client.complete(0, 0), client.complete(0, 0)
    assert client.is_cancelled(replaced)
    client.cancel(cancelled)
    assert client.is_cancelled(cancelled)
    early = client.complete(0, 0)
    client.answer(client.request("textDocument/unheardOf", {}))  # a later request, so the early one has arrived
    assert client.answers(early) == []
    gate.open()
    assert len(client.items(early)) == 1


def test_a_rewrite_that_waits_for_the_model_ends_at_its_deadline(session, gate):
    client = session("fill", "a = ...\n", env=gate.env, rewrite={"deadline_ms": 100})
    for name, gap in (("dg-lsp.rewrite", ""), ("dg-lsp.fillGaps", "line 1: ")):
        reason = client.result(client.command(name, range=span(0, 0, 7)))["reason"]
        assert reason.startswith("nothing was changed: ") and gap in reason and "time" in reason
    gate.open()


@pytest.mark.parametrize("name", ["dg-mini", "nowhere"], ids=["loads", "is missing"])
def test_a_model_that_was_replaced_while_it_loaded_is_not_reported(session, gate, name):
    client = session("fill", env=gate.env, model={"name": name}, editorInfo={"name": "test"})
    client.configure(model={"name": "reviser"})
    client.stats()  # the settings have arrived

    def is_ready():
        with suppress(OSError):  # lets the model load that waits at the moment
            os.close(os.open(gate.env["DG_TEST_GATE"], os.O_WRONLY | os.O_NONBLOCK))
        return client.logged("reviser ready after")

    client.wait_until(is_ready)
    assert client.logged() == client.logged("reviser")
    assert client.shown() == []
    states = [status["dgLsp"]["state"] for status in client.received("didChangeStatus")]
    assert states == sorted(states)  # loading, then ready
