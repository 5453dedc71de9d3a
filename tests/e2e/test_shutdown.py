"""The end of a session."""

import pytest


def test_shutdown_answers_pending_requests(session, steps):
    client = session("slow", "s\n")
    pending = client.complete(0, 1)
    client.wait_until(steps)
    assert client.leave() == 0
    assert client.is_cancelled(pending)


@pytest.mark.parametrize("is_initialized", [True, False])
def test_exit_without_shutdown_is_code_1(launcher, is_initialized):
    client = launcher.scripted("fill")
    if is_initialized:
        client.handshake()
    client.notify("exit", None)
    assert client.wait_end() == 1
    client.check()


@pytest.mark.parametrize("moment", ["computing", "loading"])
def test_the_server_ends_when_the_client_ends(launcher, steps, gate, moment):
    client = launcher.scripted_process("slow", **(gate.env if moment == "loading" else {})).begin("s\n")
    if moment == "computing":
        client.complete(0, 1)
        client.wait_until(steps)
    client.out.close()
    assert client.wait_end() == 1
    assert client.stderr == ""


@pytest.fixture
def deaf(launcher):
    """A client that has sent `initialize` and reads nothing; the server ends without an error."""
    clients = []

    def begin(scenario):
        clients.append(launcher.scripted_process(scenario, deaf=True))
        clients[-1].request("initialize", {"processId": None, "rootUri": None, "capabilities": {}})
        return clients[-1]

    yield begin
    for client in clients:
        assert client.stderr == ""


def test_a_client_that_closes_its_input_causes_no_traceback(deaf, steps):
    client = deaf("slow")
    client.notify("initialized", {})
    client.open("s\n")
    client.complete(0, 1)
    client.wait_until(steps)
    client.process.stdout.close()
    client.complete(0, 1)
    client.out.close()
    assert client.process.wait(60) == 1


def test_the_server_ends_although_the_client_reads_nothing(deaf):
    client = deaf("fill")
    for number in range(100):  # their answers are more than a pipe holds
        client.request("unknown", {}, msg_id=f"{number} {'x' * 10_000}")
    client.request("shutdown")
    client.notify("exit", None)
    assert client.process.wait(60) == 0
