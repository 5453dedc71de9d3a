"""Requests that ask the very same share one run of the model; each of them may leave without harm to the others."""

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from http_server import GAP, TIMEOUT, metric, raw, wait_until

from dg_lsp.backends.scripted import ScriptedDenoiser
from dg_lsp.http.runs import Runs

TEXT = "abcdefgh"
NUM_STEPS = len(TEXT) + 1


@pytest.fixture
def pool():
    with ThreadPoolExecutor() as pool:
        yield pool


def inside(client, num):
    wait_until(lambda: metric(client, "dg_lsp_inside") == str(num))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/infill", GAP),
        ("/infill", {**GAP, "n_cmpl": 2}),
        ("/v1/completions", {"prompt": "a = ", "suffix": "\n"}),
        ("/v1/completions", {"prompt": "a = ", "suffix": "\n", "stream": True}),
    ],
)
def test_the_very_same_request_costs_nothing_more(start, gated, pool, path, body):
    denoiser = gated(TEXT, tokens_per_step=1)
    client = start(denoiser)
    replies = [pool.submit(client.post, path, body) for _ in range(3)]
    inside(client, 3)
    denoiser.go_on.set()
    first, *others = [one.result(TIMEOUT) for one in replies]
    assert [one.status for one in (first, *others)] == [200] * 3
    assert all(TEXT.encode() in one.body or b"".join(_pieces(one)) == TEXT.encode() for one in (first, *others))
    assert denoiser.num_steps == NUM_STEPS
    assert metric(client, "dg_lsp_shared_total") == "2"


def _pieces(reply):
    import json

    return [json.loads(one)["choices"][0]["text"].encode() for one in reply.events if one != "[DONE]"]


@pytest.mark.parametrize(
    "other", [{"input_prefix": "b = "}, {"n_predict": 7}, {"seed": 3}, {"input_suffix": ")"}, {"t_max_predict_ms": 5e4}]
)
def test_another_request_is_another_run(start, gated, pool, other):
    denoiser = gated("x")
    client = start(denoiser)
    replies = [pool.submit(client.post, "/infill", body) for body in (GAP, {**GAP, **other})]
    inside(client, 2)
    denoiser.go_on.set()
    assert [one.result(TIMEOUT).status for one in replies] == [200, 200]
    assert metric(client, "dg_lsp_shared_total") == "0"


def test_one_that_leaves_does_not_stop_the_others(start, gated, pool):
    denoiser = gated(TEXT, tokens_per_step=1)
    client = start(denoiser)
    connection = raw(client, b'{"input_prefix":"a = ","input_suffix":"\\n"}')
    assert denoiser.is_inside.wait(TIMEOUT)
    reply = pool.submit(client.post, "/infill", GAP)
    inside(client, 2)
    connection.close()
    inside(client, 1)
    denoiser.go_on.set()
    assert reply.result(TIMEOUT).tree["content"] == TEXT
    assert denoiser.num_steps == NUM_STEPS


def test_who_asks_again_after_all_have_left_has_a_run_of_its_own(start, gated):
    denoiser = gated(TEXT, tokens_per_step=1)
    client = start(denoiser)
    connection = raw(client, b'{"input_prefix":"a = ","input_suffix":"\\n"}')
    assert denoiser.is_inside.wait(TIMEOUT)
    connection.close()
    inside(client, 0)
    denoiser.go_on.set()
    assert client.post("/infill", GAP).tree["content"] == TEXT
    assert denoiser.num_steps == 1 + NUM_STEPS


def test_a_newer_request_of_one_client_leaves_the_run_to_the_other(start, gated, pool):
    denoiser = gated(TEXT, tokens_per_step=1)
    client = start(denoiser)

    def ask(user, prefix):
        segments = {"prefix": prefix, "suffix": "", "filepath": "a.py"}
        return client.post("/v1/completions", {"language": "python", "segments": segments, "user": user})

    stale = pool.submit(ask, "one", "a = ")
    assert denoiser.is_inside.wait(TIMEOUT)
    other = pool.submit(ask, "two", "a = ")
    inside(client, 2)
    newer = pool.submit(ask, "one", "b = ")
    assert stale.result(TIMEOUT).status == 499
    denoiser.go_on.set()
    assert [one.result(TIMEOUT).tree["choices"][0]["text"] for one in (other, newer)] == [TEXT, TEXT]
    assert denoiser.num_steps == 2 * NUM_STEPS


def test_one_that_asks_the_same_again_goes_on_with_its_run(start, gated, pool):
    denoiser = gated(TEXT, tokens_per_step=1)
    client = start(denoiser)
    body = {"segments": {"prefix": "a = ", "suffix": "", "filepath": "a.py"}, "user": "one", "language": "python"}
    stale = pool.submit(client.post, "/v1/completions", body)
    assert denoiser.is_inside.wait(TIMEOUT)
    newer = pool.submit(client.post, "/v1/completions", body)
    assert stale.result(TIMEOUT).status == 499
    denoiser.go_on.set()
    assert newer.result(TIMEOUT).tree["choices"][0]["text"] == TEXT
    assert denoiser.num_steps == NUM_STEPS


def test_a_model_that_nobody_wants_is_given_up_and_opened_for_the_next_request(start):
    denoiser = ScriptedDenoiser("x")
    client = start(denoiser, runtime={"idle_seconds": 0.01})
    assert client.post("/infill", GAP).tree["content"] == "x"
    wait_until(lambda: client.get("/props").tree["is_sleeping"])
    wait_until(lambda: denoiser.is_closed)
    assert client.get("/health").status == 200
    assert client.post("/infill", GAP).tree["content"] == "x"


def test_one_other_machine_may_not_have_all_places(start, gated, pool, monkeypatch):
    monkeypatch.setattr("dg_lsp.http.service._peer", lambda request: request.headers.get("x-test-peer", ""))
    denoiser = gated("x")
    client = start(denoiser, http={"max_per_client": 1})

    def ask(prefix, **peer):
        return client.send("POST", "/infill", f'{{"input_prefix":"{prefix}"}}', {"X-Test-Peer": peer.get("peer", "")})

    first = pool.submit(ask, "a", peer="10.0.0.1")
    assert denoiser.is_inside.wait(TIMEOUT)
    reply = ask("b", peer="10.0.0.1")
    assert (reply.status, reply.error["type"]) == (429, "rate_limit_error")
    assert int(reply.headers["retry-after"]) > 0
    others = [pool.submit(ask, "c", peer="10.0.0.2"), pool.submit(ask, "d"), pool.submit(ask, "e")]
    inside(client, 4)
    denoiser.go_on.set()
    assert [one.result(TIMEOUT).status for one in (first, *others)] == [200] * 4
    assert ask("b", peer="10.0.0.1").status == 200


@pytest.mark.parametrize(
    ("host", "peer"), [("127.0.0.1", ""), ("::1", ""), ("10.1.2.3", "10.1.2.3"), ("testclient", ""), (None, "")]
)
def test_who_is_on_this_machine_cannot_be_told_apart(host, peer):
    from starlette.requests import Request

    from dg_lsp.http.service import _peer

    assert _peer(Request({"type": "http", "client": (host, 1) if host else None, "headers": []})) == peer


def test_no_pass_is_missed_by_who_began_it():
    """However fast the model is: here it is done before the run is there to be joined."""

    def begin(look):
        look("pass 1")
        done = Future()
        done.set_result("text")
        return done

    async def shown():
        frames = []
        stake = Runs(lambda _: None).join("a", begin, lambda: SimpleNamespace(frame=str.upper), frames.append)
        assert await stake.outcome == "text"
        return frames

    assert asyncio.run(shown()) == ["PASS 1"]
