"""The end of a session over standard input and output and over TCP."""

import os
import re
import socket

import pytest

PATIENT = {"completion": {"deadline_ms": 60_000}}


def test_shutdown_answers_pending_requests(start, steps):
    client = start("slow")
    client.handshake(options=PATIENT)
    client.open("s\n")
    pending = client.complete(0, 1)
    client.wait_until(steps)
    assert client.leave() == 0
    assert client.answer(pending)["error"]["code"] == client.CANCELLED
    client.check()
    assert client.stderr == ""


def test_exit_without_shutdown_is_code_1(start):
    client = start("fill")
    client.handshake()
    client.notify("exit", None)
    assert client.wait_end() == 1
    client.check()
    assert client.stderr == ""


def test_exit_before_initialize_ends_the_process(start):
    client = start("fill")
    client.notify("exit", None)
    assert client.wait_end() == 1


def test_shutdown_and_exit_in_one_write(start):
    client = start("slow")
    client.handshake(options=PATIENT)
    client.open("s\n")
    client.requested += ["fill", "bye"]
    sent = client.encode(id="fill", method="textDocument/inlineCompletion", params=client.completion(0, 1))
    sent += client.encode(id="bye", method="shutdown") + client.encode(method="exit")
    client.send_bytes(sent)
    assert client.wait_end() == 0
    assert client.answers("fill")[0]["error"]["code"] == client.CANCELLED
    client.check()


@pytest.mark.parametrize("scenario", ["computing", "loading"])
def test_the_server_ends_when_the_client_ends(start, steps, tmp_path, scenario):
    env = {}
    if scenario == "loading":
        os.mkfifo(tmp_path / "gate")
        env["DG_TEST_GATE"] = str(tmp_path / "gate")
    client = start("slow", **env)
    client.handshake(options=PATIENT)
    client.open("s\n")
    if scenario == "computing":
        client.complete(0, 1)
        client.wait_until(steps)
    client.out.close()
    assert client.wait_end() == 1
    assert client.stderr == ""


def test_a_client_that_closes_its_input_causes_no_traceback(launcher, steps):
    client = launcher.scripted("slow", deaf=True)
    client.request(
        "initialize", {"processId": None, "rootUri": None, "capabilities": {}, "initializationOptions": PATIENT}
    )
    client.notify("initialized", {})
    client.open("s\n")
    client.complete(0, 1)
    client.wait_until(steps)
    client.process.stdout.close()
    client.complete(0, 1)
    client.out.close()
    assert client.process.wait(60) == 1
    assert client.stderr == ""


def test_the_end_of_input_inside_a_message_ends_the_process(start):
    client = start("fill")
    client.handshake()
    client.send_bytes(b"Content-Length: 100\r\n\r\n{")
    client.out.close()
    assert client.wait_end() == 1
    assert client.stderr == ""


def listening_port(client):
    def listening():
        return re.search(r"listening on 127\.0\.0\.1:(\d+)", client.stderr)

    return int(client.wait_until(listening)[1])


def test_a_tcp_server_serves_one_client_and_ends_with_it(start):
    client = start("fill", "0")
    port = listening_port(client)
    with socket.create_connection(("127.0.0.1", port)) as connection, connection.makefile("rwb") as stream:
        client.connect(stream, stream)
        client.handshake(options=PATIENT)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port)).close()
        client.open("\n")
        assert len(client.items(client.complete(0, 0))) == 1
        assert client.leave() == 0
    client.check()


def test_shutdown_over_tcp_answers_pending_requests(start):
    client = start("slow", "0")
    port = listening_port(client)
    with socket.create_connection(("127.0.0.1", port)) as connection, connection.makefile("rwb") as stream:
        client.connect(stream, stream)
        client.handshake(options=PATIENT)
        client.open("s\n")
        pending = client.complete(0, 1)
        client.requested.append("bye")
        client.send_bytes(client.encode(id="bye", method="shutdown") + client.encode(method="exit"))
        assert client.wait_end() == 0
    assert client.answer(pending)["error"]["code"] == client.CANCELLED
    client.check()


def test_a_tcp_server_ends_when_its_client_ends(start):
    client = start("fill", "0")
    with socket.create_connection(("127.0.0.1", listening_port(client))) as connection:
        connection.sendall(client.encode(id=1, method="initialize", params={"processId": None, "capabilities": {}}))
        assert connection.recv(1)
    assert client.process.wait(60) == 1
    assert "Traceback" not in client.stderr


def test_a_port_in_use_is_reported_in_one_line(start):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        client = start("fill", str(port))
        assert client.wait_end() == 2
    assert client.stderr.startswith(f"cannot listen on 127.0.0.1:{port}")
    assert client.stderr.count("\n") == 1
