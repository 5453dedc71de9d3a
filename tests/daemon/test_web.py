"""HTTP from a daemon's models: one model for an editor and for HTTP clients."""

import socket
import threading
import time

import pytest
from http_server import Client
from workers import TIMEOUT, ask

from dg_lsp.daemon.calling import ask as ask_daemon
from dg_lsp.errors import DaemonError, UsageError
from dg_lsp.http.auth import AccessRules
from dg_lsp.http.server import Address, HttpServer
from dg_lsp.settings import FillSettings, Settings

GAP = {"input_prefix": "a = ", "prompt": "", "input_suffix": "\n"}
PATIENT = Settings(fill=FillSettings(early_stop_ms=0, deadline_ms=60_000))


def http_server(share, rules=None):
    return HttpServer(Address(port=0), share, PATIENT, rules or AccessRules(), is_persistent=True)


@pytest.fixture
def serve(start):
    """`serve()` -> a daemon with HTTP, and a client of it that need not wait for a model."""

    def call(rules=None, **how):
        daemon = start(open_web=lambda share: http_server(share, rules), **how)
        return daemon, Client(int(daemon.url.rpartition(":")[2]))

    return call


def test_an_editor_and_http_have_one_model(serve, place, scripts):
    daemon, client = serve()
    assert client.wait_ready().post("/infill", GAP).tree["content"] == "fill"
    share = daemon._pool.share(Settings())
    assert share.submit(ask()).result(TIMEOUT).text == "fill"
    assert len(scripts.denoisers) == 1
    facts = ask_daemon(place.read(), "status")
    assert facts["http"] == daemon.url
    assert facts["models"] == [{"model": "dg-mini", "state": "ready", "sessions": 2}]
    assert client.post("/infill", GAP).tree["content"] == "fill"


def test_neither_cancels_what_the_other_asked(serve, scripts):
    daemon, client = serve()
    client.wait_ready()
    scripts.denoisers[0]._step_seconds = 0.2
    share, replies = daemon._pool.share(PATIENT), []
    asking = threading.Thread(target=lambda: replies.append(client.post("/infill", GAP)))
    asking.start()
    assert share.submit(ask()).result(TIMEOUT).text == "fill"
    asking.join(TIMEOUT)
    assert [reply.status for reply in replies] == [200]


def test_it_ends_with_the_daemon(serve):
    daemon, client = serve()
    client.wait_ready()
    daemon.stop()
    daemon._web._thread.join(TIMEOUT)
    with pytest.raises(ConnectionRefusedError):
        client.get("/health")


def test_the_same_rules_as_of_serve(serve):
    _, client = serve(AccessRules(api_key="secret"))
    while client.get("/health").status != 200:
        time.sleep(0.01)
    assert client.post("/infill", GAP).status == 401
    assert client.post("/infill", GAP, Authorization="Bearer secret").status == 200


def test_it_is_open_to_nobody_without_a_key(place, scripts, start):
    with pytest.raises(UsageError, match="api-key-file"):
        start(open_web=lambda share: HttpServer(Address("0.0.0.0", 0), share, PATIENT, AccessRules()))
    start()  # the lock was given back


def test_where_editors_cannot_reach_it_nobody_can(start):
    opened = []

    def open_web(share):
        opened.append(http_server(share))
        return opened[-1]

    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(DaemonError, match="cannot listen"):
        start(port=taken.getsockname()[1], open_web=open_web)
    assert opened[0]._socket.fileno() == -1
    start()  # the lock was given back


def test_a_lingering_one_stays_while_http_is_used(serve, place):
    _, client = serve(is_lingering=True, idle_seconds=2.5)
    client.wait_ready()
    began = time.monotonic()
    while time.monotonic() < began + 4:
        assert client.post("/infill", GAP).status == 200
        time.sleep(0.2)
    end = time.monotonic() + TIMEOUT
    while place.read() is not None:
        assert time.monotonic() < end
        time.sleep(0.05)
