"""The life of a server: binding, loading the model, and stopping."""

import socket
from functools import partial

import pytest
from http_server import GAP, TIMEOUT, connect, engine_of, packed
from scripted import ScriptedDenoiser

from dg_lsp.engine.scheduler import Scheduler
from dg_lsp.errors import ModelError, UsageError
from dg_lsp.http.app import HttpServer
from dg_lsp.http.auth import AccessRules
from dg_lsp.settings import Settings


def make_server(open_engine):
    return HttpServer(("127.0.0.1", 0), partial(Scheduler, open_engine), Settings(), AccessRules())


def test_stopping_the_server_answers_waiting_requests(start, gated):
    denoiser = gated("x")
    client = start(denoiser)
    [server] = start.started
    with connect(client, packed("/infill", {**GAP, "t_max_predict_ms": 30_000})) as connection:
        assert denoiser.is_inside.wait(TIMEOUT)
        server.should_exit = True
        received = b""
        while b"the server is stopping" not in received:  # before the model's step ends
            piece = connection.recv(65536)
            assert piece, received
            received += piece
        denoiser.go_on.set()
        assert connection.recv(65536) == b""
    start.close()  # waits for its end
    assert denoiser.is_closed
    assert server._socket.fileno() == -1


def test_a_model_that_cannot_be_opened_ends_the_server():
    def open_engine(settings):
        raise ModelError("half.gguf ends too early; fetch it again")

    with pytest.raises(ModelError, match="fetch it again"):
        make_server(open_engine).run()


def test_the_socket_has_its_protocol():
    """asyncio sets TCP_NODELAY on such sockets only; without it every response takes 40 ms longer."""
    server = make_server(engine_of(ScriptedDenoiser("x")))
    assert server._socket.proto == socket.IPPROTO_TCP
    server.should_exit = True
    server.run()  # closes the socket


def test_a_taken_port_is_a_usage_error():
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(UsageError, match="choose another"):
        HttpServer(taken.getsockname(), lambda _: None, Settings(), AccessRules())
