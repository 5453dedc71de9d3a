"""Benchmarks of a remote server: numbers that it does not report are null."""

import json
from contextlib import closing
from pathlib import Path

import pytest
from lying_server import LyingServer, events, reply

from dg_lsp.bench.dataset import read_cases

REFERENCES = {case.prefix: case.reference for case in read_cases(Path(__file__).parents[1] / "bench/problems.jsonl")}


def answering(text_after, api="completions"):
    """A server that gives this text after a prompt, in the dialect of one API, and reports no costs."""

    def answer(server, connection):
        tree = json.loads(server.requests[-1].partition(b"\r\n\r\n")[2])
        text = text_after((tree.get("input_prefix", "") + tree["prompt"]).partition("<|fim_suffix|>")[0])
        plain, choices = {"content": text, "stop": True}, {"choices": [{"text": text, "finish_reason": "stop"}]}
        connection.sendall(events(json.dumps(plain if api == "infill" else choices), "[DONE]"))
        connection.close()

    return closing(LyingServer(answer))


@pytest.fixture
def oracle():
    """A server that answers with all references."""
    texts = REFERENCES.items()
    with answering(lambda prompt: next(text for prefix, text in texts if prefix.endswith(prompt))) as server:
        yield server


def test_infill_of_a_server_that_reports_no_costs(dg_lsp, data, oracle):
    command = ("bench", "infill", data, "--length", "oracle", "--remote", oracle.url, "--output", "run.jsonl")
    tree = dg_lsp(*command, "--json").json
    assert (tree["num"], tree["exact_match"], tree["model"]) == (5, 1.0, f"127.0.0.1:{oracle.port}")
    assert tree["latency_ms"]["p50"] > 0
    assert tree["ttfue_ms"]["p50"] > 0
    assert (tree["steps_mean"], tree["tokens_per_forward"]) == (None, None)
    header, *attempts = map(json.loads, Path("run.jsonl").read_text().splitlines())
    for attempt in attempts:
        assert attempt["contender"] == "remote"
        assert {attempt[key] for key in ("steps", "tokens", "prefill_ms", "model_ms")} == {None}
    assert (header["model_sha256"], header["machine"]["threads"]) == (None, None)
    num_requests = len(oracle.requests)
    printed = dg_lsp(*command).out  # resumes the run without requests
    assert len(oracle.requests) == num_requests == 5
    assert f"remote is {oracle.url} by completions" in printed
    assert "sha256" not in printed


def test_secrets_are_not_written_down(dg_lsp, data, oracle, user_settings, monkeypatch):
    monkeypatch.setenv("sk_marzipan", "sk-sesame-4711")  # a name that may be a key itself
    extra = json.dumps({"api_token": "sk-treasure-1"})
    user_settings(f'[remote]\nkey_source = "sk_marzipan"\nextra = {json.dumps(extra)}\n')
    outcome = dg_lsp("bench", "infill", data, "--remote", oracle.url, "--output", "run.jsonl")
    assert outcome.code == 0
    assert b"sk-sesame-4711" in oracle.requests[0]
    assert b"sk-treasure-1" in oracle.requests[0]
    written = outcome.out + Path("run.jsonl").read_text()
    assert "sesame" not in written
    assert "treasure" not in written
    assert "marzipan" not in written


@pytest.mark.parametrize(
    ("options", "path", "sent"),
    [
        (["--api", "infill"], b"POST /infill", b'"input_suffix"'),
        (["--fim", "qwen", "--model", "qwen2.5-coder"], b"POST /v1/completions", b"<|fim_suffix|>"),
    ],
    ids=["llama-server", "vLLM"],
)
def test_replay_measures_other_servers_by_the_same_definitions(dg_lsp, options, path, sent):
    Path("a.py").write_text("def area(width, height):\n    return width * height\n")
    typing = ("--region", "2-2", "--speed", "0.1")  # slow: an answer of a busy machine is there before the next key
    api = "infill" if "infill" in options else "completions"
    with answering(lambda prompt: "width * height" * prompt.endswith("return "), api) as server:
        command = ("bench", "replay", "a.py", *typing, "--remote", server.url, *options)
        tree = dg_lsp(*command, "--json").json
    assert server.requests[0].startswith(path) and all(sent in request for request in server.requests)
    assert tree["model"].endswith(f"127.0.0.1:{server.port}")
    assert tree["useful_edits"]["num"] == 1 and tree["ttfue_ms"]["p50"] > 0
    assert 0 < tree["right_rate"] == round(1 - tree["miss_rate"], 4)


def test_a_failing_server_ends_the_run_and_keeps_the_attempts(dg_lsp, data):
    good = events(json.dumps({"choices": [{"text": "width", "finish_reason": "stop"}]}), "[DONE]")
    server = LyingServer(good, good, reply("", "401 Unauthorized"))
    outcome = dg_lsp("bench", "infill", data, "--remote", server.url, "--output", "run.jsonl")
    server.close()
    assert outcome.code == 3
    assert "requires a key" in outcome.err
    assert len(Path("run.jsonl").read_text().splitlines()) == 3
