"""The life of a server: binding, loading the model, and stopping."""

import socket
import threading
from functools import partial

import pytest
from http_server import GAP, TIMEOUT, Client, engine_of, raw, wait_until

from dg_lsp.backends.scripted import ScriptedDenoiser
from dg_lsp.engine.scheduler import Scheduler
from dg_lsp.errors import ModelBrokenError, UsageError
from dg_lsp.http import app
from dg_lsp.http.app import HttpServer
from dg_lsp.http.auth import AccessRules
from dg_lsp.settings import Settings


def make_server(open_engine, **options):
    return HttpServer(("127.0.0.1", 0), partial(Scheduler.of, open_engine), Settings(), AccessRules(), **options)


def test_stopping_the_server_answers_waiting_requests(gated):
    denoiser = gated("x")
    server = make_server(engine_of(denoiser))
    server.start()
    client = Client(server.port).wait_ready()
    with raw(client, b'{"input_prefix":"a = ","t_max_predict_ms":30000}') as connection:
        assert denoiser.is_inside.wait(TIMEOUT)
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        received = b""
        while b"the server is stopping" not in received:  # before the model's step ends
            piece = connection.recv(65536)
            assert piece, received
            received += piece
        denoiser.go_on.set()
        assert connection.recv(65536) == b""
    stopping.join(TIMEOUT)
    assert denoiser.is_closed
    with pytest.raises(ConnectionRefusedError):
        client.get("/health")


def test_a_model_that_cannot_be_opened_ends_the_server():
    def open_engine(settings):
        raise ModelBrokenError("half.gguf ends too early; fetch it again")

    with pytest.raises(ModelBrokenError, match="fetch it again"):
        make_server(open_engine).run()


def test_a_persistent_server_opens_the_model_again(monkeypatch, capfd):
    monkeypatch.setattr(app, "REOPEN_SECONDS", 0.01)
    errors = [ModelBrokenError("half.gguf ends too early")] * 2

    def open_engine(settings):
        if errors:
            raise errors.pop()
        return engine_of(ScriptedDenoiser("x"))(settings)

    server = make_server(open_engine, is_persistent=True)
    server.start()
    assert Client(server.port).wait_ready().post("/infill", GAP).tree["content"] == "x"
    server.stop()
    assert capfd.readouterr().err.count("ends too early") == 1


def test_idle_seconds_are_zero_during_a_request(gated, pool):
    denoiser = gated("x")
    server = make_server(engine_of(denoiser))
    server.start()
    client = Client(server.port).wait_ready()
    wait_until(lambda: server.idle_seconds() > 0)
    reply = pool.submit(client.post, "/infill", GAP)
    assert denoiser.is_inside.wait(TIMEOUT)
    assert server.idle_seconds() == 0
    denoiser.go_on.set()
    assert reply.result(TIMEOUT).status == 200
    server.stop()


def test_the_socket_has_its_protocol():
    """asyncio sets TCP_NODELAY on such sockets only; without it every response takes 40 ms longer."""
    server = make_server(engine_of(ScriptedDenoiser("x")))
    assert server._socket.proto == socket.IPPROTO_TCP
    server.stop()


def test_a_taken_port_is_a_usage_error():
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(UsageError, match="choose another"):
        HttpServer(taken.getsockname(), lambda _: None, Settings(), AccessRules())
