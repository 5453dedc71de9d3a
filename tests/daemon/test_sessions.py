"""Editors whose sessions share the models of a daemon in this process."""

import json
import threading
from contextlib import ExitStack
from functools import partial

import pytest
from e2e.scripted_server import open_engine
from language_client import SocketClient
from shared_daemon import serving, wait_until


@pytest.fixture
def edit(endpoint, tmp_path, monkeypatch):
    """`edit("slow", "f")` -> an editor with this document; the first one starts a daemon with the scenario's model."""
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    steps = tmp_path / "steps"  # a character for each denoising step
    steps.touch()
    clients = []

    def begin(scenario, text, **options):
        if not clients:
            environment = {"DG_TEST_STEPS": str(steps), "DG_TEST_FILL": "total"}
            stack.enter_context(serving(endpoint, partial(open_engine, scenario=scenario, environment=environment)))
        connection, _ = endpoint.call({"want": "session"})
        clients.append(SocketClient(connection))
        stack.callback(clients[-1].kill)
        return clients[-1].begin(text, **options)

    with ExitStack() as stack:
        yield begin


@pytest.mark.parametrize("endpoint", ["socket", "tcp"], indirect=True)
def test_two_editors_share_one_model_and_do_not_cancel_each_other(edit, endpoint, tmp_path):
    first, second = (edit("slow", "f") for _ in range(2))
    pending = first.complete(0, 1)
    wait_until((tmp_path / "steps").read_text)
    later = second.complete(0, 1)
    assert [len(client.items(request)) for client, request in ((first, pending), (second, later))] == [1, 1]
    status = endpoint.query("status")
    assert status["sessions"] == 2
    assert [(model["state"], model["sessions"]) for model in status["models"]] == [("ready", 2)]
    for client in (first, second):
        client.check()
    wait_until(lambda: endpoint.query("status")["sessions"] == 0)


def test_each_editor_has_its_own_settings(edit):
    clients = [edit("echo", "\n", completion={"deadline_ms": 5000 + 1000 * number}) for number in range(2)]
    for _ in range(2):
        assert [json.loads(client.texts(0, 0)[0])["settings"] for client in clients] == [5000, 6000]


def test_editors_that_share_a_daemon_count_useful_edits_together(edit):
    first, second = (edit("fill", "s = \n") for _ in range(2))
    [item] = first.items(first.complete(0, 4))
    first.type(2, 0, 4, item["insertText"])
    first.check()
    assert second.stats()["today"]["usefulEdits"] == 1
