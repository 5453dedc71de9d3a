"""HTTP from the models of a daemon: editors and HTTP clients share one model."""

import threading
import time
from contextlib import suppress

import pytest
from filelock import FileLock, Timeout
from gates import TIMEOUT, ask
from http_server import OPERATOR, Client, metric
from shared_daemon import wait_until

from dg_lsp.daemon.client import Endpoint
from dg_lsp.daemon.client import ask as ask_daemon
from dg_lsp.engine.ttfue import Outcome
from dg_lsp.errors import DaemonError, ModelNotFoundError
from dg_lsp.http import app
from dg_lsp.http.app import HttpServer
from dg_lsp.http.auth import AccessRules
from dg_lsp.settings import CompletionSettings, Settings

GAP = {"input_prefix": "a = ", "prompt": "", "input_suffix": "\n"}
PATIENT = Settings(completion=CompletionSettings(early_stop_ms=0, deadline_ms=60_000))


def opener(host="127.0.0.1", rules=OPERATOR):
    return lambda share: HttpServer((host, 0), share, PATIENT, rules, is_persistent=True)


@pytest.fixture
def serve(start):
    """`serve()` -> a daemon with HTTP, and a client of it."""

    def call(**options):
        daemon = start(open_http=opener(), **options)
        return daemon, Client(int(daemon.url.rpartition(":")[2]), OPERATOR.keys["operator"]).wait_ready()

    return call


def test_an_editor_and_an_http_client_share_one_model_and_do_not_cancel_each_other(serve, endpoint, scripts):
    daemon, client = serve()
    share, replies = daemon._pool.share(PATIENT), []
    scripts.denoisers[0]._step_seconds = 0.2
    thread = threading.Thread(target=lambda: replies.append(client.post("/infill", GAP)))
    thread.start()
    assert share.submit(ask()).result(TIMEOUT).text == "fill"
    thread.join(TIMEOUT)
    assert replies[0].tree["content"] == "fill"
    assert len(scripts.denoisers) == 1
    facts = ask_daemon(endpoint.read(), "status")
    assert facts["http"] == daemon.url
    assert facts["models"] == [{"model": "auto", "state": "ready", "sessions": 2}]


def test_the_metrics_show_the_useful_edits_of_editors(serve):
    daemon, client = serve()
    verdicts = {"time": "", "request": "", "model": "m", "trigger": "typed"}
    for verdict, ms in (("useful", 80.0), ("useful", 3000.0), ("missed", 5.0)):
        daemon._pool.share(PATIENT).usage.add(Outcome(**verdicts, verdict=verdict, answer_ms=ms))
    assert metric(client, 'dg_lsp_inline_completions_total{verdict="useful"}') == 2
    assert metric(client, 'dg_lsp_inline_completions_total{verdict="missed"}') == 1
    counts = [metric(client, f'dg_lsp_ttfue_seconds_bucket{{le="{le}"}}') for le in ("0.05", "0.1", "2.5", "+Inf")]
    assert counts == [0, 1, 1, 2]
    assert metric(client, "dg_lsp_ttfue_seconds_sum") == pytest.approx(3.08)


def test_http_ends_when_the_daemon_leaves_to_another_version(serve, endpoint):
    _, client = serve()
    ask_daemon(endpoint.read(), "leave")
    endpoint.acquire_lock().release()
    with pytest.raises(ConnectionRefusedError):
        client.get("/health")


def test_a_daemon_that_leaves_answers_at_once_and_frees_its_lock_when_http_has_ended(serve, endpoint, monkeypatch):
    go_on, stop = threading.Event(), HttpServer.stop

    def stop_late(server):
        assert go_on.wait(TIMEOUT)
        stop(server)

    monkeypatch.setattr(HttpServer, "stop", stop_late)
    serve()
    assert "leaving" in ask_daemon(endpoint.read(), "leave")
    assert endpoint.read() is None
    with pytest.raises(Timeout):
        FileLock(endpoint.lock).acquire(timeout=0)
    go_on.set()
    endpoint.acquire_lock().release()


def test_a_daemon_that_cannot_listen_frees_its_lock_and_its_port(start, monkeypatch):
    def refuse(*_, **__):
        raise DaemonError("the daemon cannot listen")

    opened = []

    def open_http(share):
        opened.append(opener()(share))
        return opened[-1]

    with monkeypatch.context() as patch, pytest.raises(DaemonError):
        patch.setattr(Endpoint, "listen", refuse)
        start(open_http=open_http)
    assert opened[0]._socket.fileno() == -1
    start()


def test_a_model_that_is_missing_is_opened_as_soon_as_it_is_there(start, scripts, monkeypatch):
    monkeypatch.setattr(app, "REOPEN_SECONDS", 0.05)
    scripts.error = ModelNotFoundError("no model named 'nowhere'; try dg-mini")
    client = Client(int(start(open_http=opener(rules=AccessRules())).url.rpartition(":")[2]))
    wait_until(lambda: "nowhere" in client.get("/health").error["message"])
    scripts.error = None
    assert client.wait_ready().post("/infill", GAP).tree["content"] == "fill"


def test_a_daemon_stays_while_http_is_used(serve, endpoint):
    _, client = serve(exit_when_idle=True, idle_seconds=3.0)
    start = time.monotonic()
    while time.monotonic() < start + 4:
        assert client.post("/infill", GAP).status == 200
        time.sleep(0.2)
    with suppress(ConnectionError):  # what a monitor sends does not keep it
        while endpoint.read() is not None:
            client.get("/health")
            time.sleep(0.05)
    wait_until(lambda: endpoint.read() is None)
