import itertools
import json
import socket
import threading
from types import SimpleNamespace

import pytest

from dg_lsp.daemon import client
from dg_lsp.daemon.client import call
from dg_lsp.daemon.endpoint import Record


def test_a_program_that_took_over_the_port_receives_nothing_but_the_token(endpoint):
    """A daemon that was killed leaves its record behind, and a port that any program may take."""
    received = []

    def pretend(listener):
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as stream:
            received.append(stream.readline())
            connection.sendall(b'{"proof": "guessed"}\n')
            received.append(stream.readline())

    with socket.create_server(("127.0.0.1", 0)) as listener:
        impostor = threading.Thread(target=pretend, args=(listener,))
        impostor.start()
        endpoint.prepare()
        endpoint.write(Record(1, 0.0, "token", "proof", f"127.0.0.1:{listener.getsockname()[1]}"))
        assert call(endpoint, {"want": "session", "settings": {"model": {"name": 3}}}) is None
        impostor.join(30)
    assert [json.loads(received[0]), received[1]] == [{"token": "token"}, b""]


class Trickle:
    """A connection on which a byte arrives again and again."""

    def settimeout(self, seconds):
        assert seconds > 0

    def recv(self, _size):
        return b" "


def test_a_client_that_trickles_is_disconnected(monkeypatch):
    monkeypatch.setattr(client, "time", SimpleNamespace(monotonic=itertools.count().__next__))
    with pytest.raises(TimeoutError):
        client.receive(Trickle())
