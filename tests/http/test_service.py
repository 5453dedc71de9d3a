"""Who waits, who leaves, who is refused; what goes wrong is told as an error object, never as an empty completion."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from http_server import GAP, TIMEOUT, Client, engine_of, metric, raw, wait_until

from dg_lsp.backends.scripted import ScriptedDenoiser
from dg_lsp.engine.engine import Engine
from dg_lsp.engine.scheduler import Scheduler
from dg_lsp.errors import BackendError, ModelBrokenError
from dg_lsp.http.gate import Rules
from dg_lsp.http.listening import Address, Listening
from dg_lsp.settings import Settings

SECRET = "never-in-an-answer"


def test_a_client_that_leaves_stops_the_model_within_a_step(start, gated):
    denoiser = gated("abcdefgh", tokens_per_step=1)
    client = start(denoiser)
    connection = raw(client, b'{"input_prefix":"a = "}')
    assert denoiser.is_inside.wait(TIMEOUT)
    connection.close()
    wait_until(lambda: metric(client, "dg_lsp_left_total") == "1")
    denoiser.go_on.set()
    assert client.post("/infill", GAP).tree["content"] == "abcdefgh"
    assert denoiser.num_steps == 1 + 9  # the step that the one who left was in, and those of the other


def test_a_client_that_leaves_while_it_waits_costs_no_step(start, gated):
    denoiser = gated("abcdefgh", tokens_per_step=1)
    client = start(denoiser)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(client.post, "/infill", GAP)
        assert denoiser.is_inside.wait(TIMEOUT)
        raw(client, b'{"input_prefix":"b = "}').close()
        wait_until(lambda: metric(client, "dg_lsp_left_total") == "1")
        denoiser.go_on.set()
        assert first.result(TIMEOUT).tree["content"] == "abcdefgh"
    assert denoiser.num_steps == 9


def test_more_than_may_wait_are_asked_to_come_again(start, gated):
    denoiser = gated("x")
    client = start(denoiser, http={"max_waiting": 2})
    with ThreadPoolExecutor() as pool:
        inside = [pool.submit(client.post, "/infill", GAP) for _ in range(2)]
        wait_until(lambda: metric(client, "dg_lsp_inside") == "2")
        reply = client.post("/infill", GAP)
        assert reply.status == 503
        assert int(reply.headers["retry-after"]) > 0
        assert reply.error["type"] == "unavailable_error"
        denoiser.go_on.set()
        assert [one.result(TIMEOUT).tree["content"] for one in inside] == ["x", "x"]
    assert client.post("/infill", GAP).status == 200


def test_who_cannot_be_told_apart_is_not_cancelled(start, gated):
    """minuet sends the same request several times at once, and wants all answers."""
    denoiser = gated("x")
    client = start(denoiser)
    with ThreadPoolExecutor() as pool:
        replies = [pool.submit(client.post, "/v1/completions", {"prompt": "a = "}) for _ in range(3)]
        wait_until(lambda: metric(client, "dg_lsp_inside") == "3")
        denoiser.go_on.set()
        assert [one.result(TIMEOUT).status for one in replies] == [200] * 3


def test_a_newer_request_of_a_known_document_takes_the_olders_place(start, gated):
    denoiser = gated("x")
    client = start(denoiser)

    def ask(user, prefix):
        segments = {"prefix": prefix, "suffix": "", "filepath": "a.py"}
        return client.post("/v1/completions", {"language": "python", "segments": segments, "user": user})

    with ThreadPoolExecutor() as pool:
        stale = pool.submit(ask, "one", "a")
        assert denoiser.is_inside.wait(TIMEOUT)
        other = pool.submit(ask, "two", "a")
        wait_until(lambda: metric(client, "dg_lsp_inside") == "2")
        newer = pool.submit(ask, "one", "ab")
        reply = stale.result(TIMEOUT)
        assert reply.status == 499  # openai's client asks again after 409, 429 and all of 500
        assert reply.error["type"] == "cancelled_error"
        denoiser.go_on.set()
        assert [one.result(TIMEOUT).status for one in (other, newer)] == [200, 200]


def test_the_deadline_holds_while_others_are_served(start, gated):
    denoiser = gated("x")
    client = start(denoiser)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(client.post, "/infill", GAP)
        assert denoiser.is_inside.wait(TIMEOUT)
        reply = client.post("/infill", {**GAP, "t_max_predict_ms": 20})
        assert (reply.status, reply.error["type"]) == (504, "timeout_error")
        denoiser.go_on.set()
        assert first.result(TIMEOUT).status == 200


class Tiring(ScriptedDenoiser):
    """Quick for so many passes, then slower than any deadline of a test."""

    def predict(self, *args, **kwargs):
        if self.num_steps == 12:
            time.sleep(2.5)
        return super().predict(*args, **kwargs)


def test_the_deadline_shows_what_is_settled(start):
    text = "first = 1\nsecond = 2\nthird = 3"
    body = {"input_prefix": "def f():\n    pass\n\n", "input_suffix": "\n"}
    whole = start(ScriptedDenoiser(text, tokens_per_step=1)).post("/infill", body).tree["content"]
    tired = start(Tiring(text, tokens_per_step=1))
    soon = tired.post("/infill", {**body, "t_max_predict_ms": 2000}).tree["content"]
    assert whole.startswith(soon)
    assert 0 < len(soon) < len(whole)


def test_while_the_model_loads_health_says_so_and_nobody_is_kept_waiting(start):
    opened = threading.Event()

    def open_engine(settings):
        assert opened.wait(TIMEOUT)
        denoiser = ScriptedDenoiser("x")
        return Engine(denoiser, denoiser.tokenizer, settings.fill)

    client = start(open_engine=open_engine, is_waited=False)
    loading = b'{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}'
    for reply in (client.get("/health"), client.post("/infill", GAP), client.get("/v1/models")):
        assert (reply.status, reply.body) == (503, loading)
    assert client.get("/metrics").status == 200
    opened.set()
    assert client.wait_ready().get("/health").body == b'{"status":"ok"}'


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (BackendError("the graph failed; lower gpu_layers"), "the graph failed; lower gpu_layers"),
        (ValueError(SECRET), "internal error: ValueError"),
    ],
)
def test_an_engine_that_fails_is_told_and_the_next_request_works(start, capfd, error, message):
    class Failing(ScriptedDenoiser):
        fails = True

        def predict(self, *args, **kwargs):
            if self.fails:
                raise error
            return super().predict(*args, **kwargs)

    denoiser = Failing("x")
    client = start(denoiser)
    reply = client.post("/infill", GAP)
    assert (reply.status, reply.error["message"]) == (500, message)
    denoiser.fails = False
    assert client.post("/infill", GAP).status == 200
    assert SECRET not in "".join(capfd.readouterr())


def test_the_server_leaves_while_requests_are_inside(gated):
    denoiser = gated("x")
    listening = Listening(Address(port=0), partial(Scheduler.of, engine_of(denoiser)), Settings(), Rules())
    thread = threading.Thread(target=listening.run)
    thread.start()
    client = Client(listening.port).wait_ready()
    with raw(client, b'{"input_prefix":"a = ","t_max_predict_ms":30000}') as connection:
        assert denoiser.is_inside.wait(TIMEOUT)
        listening.stop()
        said = b""
        while b"the server is leaving" not in said:  # it is said before the model's step is over
            piece = connection.recv(65536)
            assert piece, said
            said += piece
        denoiser.go_on.set()
        assert connection.recv(65536) == b""
    thread.join(TIMEOUT)
    assert not thread.is_alive()
    assert denoiser.is_closed


def test_a_model_that_cannot_be_opened_ends_the_server():
    def open_engine(settings):
        raise ModelBrokenError("half.gguf ends too early; fetch it again")

    with pytest.raises(ModelBrokenError, match="fetch it again"):
        Listening(Address(port=0), partial(Scheduler.of, open_engine), Settings(), Rules()).run()
