"""Load on servers with OpenAI-like APIs: what is sent, what is counted, and two servers in turn. No times are held."""

import json
import re
import threading
from pathlib import Path

import pytest
from chatty import chatty
from http_server import Starter
from lying_server import LyingServer, events, reply, silent

from dg_lsp.backends.remote.client import RemoteModel
from dg_lsp.backends.scripted import ScriptedDenoiser
from dg_lsp.bench.load import LoadAnswer, LoadPlan, LoadRound, read_prompts, run_load, summarize_load
from dg_lsp.settings import RemoteSettings

PROMPTS = (
    {"task_id": "a", "prompt": "x = ", "suffix": "\n", "canonical_solution": "alpha\n", "path": "a.py"},
    {"task_id": "b", "prompt": "y = ", "suffix": "\n", "canonical_solution": "beta\n", "path": "b.py"},
    {"prompt": "Name a colour."},
)
COUNTS = {"usage": {"completion_tokens": 7}, "diffusion": {"steps": 4, "blocks": 2, "canvas_tokens": 64}}


def streamed(*texts, **counts):
    """A stream of pieces whose counts come after the finish reason."""
    pieces = [{"choices": [{"index": 0, "text": text, "finish_reason": None}]} for text in texts]
    pieces += [{"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]}, {"choices": [], **counts}]
    return events(*map(json.dumps, pieces), "[DONE]")


def body(request):
    return json.loads(request.partition(b"\r\n\r\n")[2])


@pytest.fixture
def start():
    servers = []

    def call(*answers):
        servers.append(LyingServer(*answers))
        return servers[-1]

    yield call
    for server in servers:
        server.close()


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in PROMPTS))
    return path


def test_every_answer_is_counted_and_no_prompt_is_sent_twice(dg_lsp, start, prompts):
    server = start(streamed("alpha\nmore", "", **COUNTS))
    command = ("bench", "serve", server.url, "--prompts", prompts, "--concurrency", "1,3", "--rounds", "2")
    tree = dg_lsp(*command, "--max-tokens", "9", "--output", "run.jsonl", "--json").json
    assert [level["concurrency"] for level in tree["levels"]] == [1, 3]
    nums = [3 * 2, 6 * 2]
    for level, num in zip(tree["levels"], nums, strict=True):
        [one] = level["servers"].values()
        assert (one["num_answers"], one["num_refused"], one["num_errors"]) == (num, 0, 0)
        assert one["useful"] == 0.5
        assert one["first_useful_line_p50_ms"] <= one["latency_p95_ms"]
        assert one["tokens_per_s"] == pytest.approx(7 * one["requests_per_s"], rel=1e-3)
        assert one["canvas_tokens_per_s"] == pytest.approx(64 * one["requests_per_s"], rel=1e-3)
        assert one["blocks_per_s"] == pytest.approx(2 * one["requests_per_s"], rel=1e-3)
        assert "ratio" not in level
    bodies = [body(request) for request in server.requests]
    assert len(bodies) == sum(nums) + 2 * 2  # and two of each warm-up
    assert len({one["prompt"] for one in bodies}) == len(bodies)
    assert {one["max_tokens"] for one in bodies} == {9}
    assert all(one["stream_options"] == {"include_usage": True} for one in bodies)
    assert {one["prompt"].partition("\n")[2] for one in bodies if "suffix" in one} == {"x = ", "y = "}
    assert {one["prompt"].partition("\n")[2] for one in bodies if "suffix" not in one} == {"Name a colour."}
    header, *rounds = [json.loads(line) for line in Path("run.jsonl").read_text().splitlines()]
    assert (header["command"], header["options"]["levels"]) == ("serve", [1, 3])
    assert [len(one["answers"]) for one in rounds] == [3, 3, 6, 6]
    assert "alpha" not in Path("run.jsonl").read_text()
    assert "run.jsonl exists" in dg_lsp(*command, "--output", "run.jsonl").error(2)


def test_page_has_the_numbers_and_the_latency_of_each_level(dg_lsp, start, prompts):
    server = start(streamed("alpha", **COUNTS))
    command = ("bench", "serve", server.url, "--prompts", prompts, "--rounds", "1", "--concurrency", "1,2")
    assert "no directory" in dg_lsp(*command, "--html", "missing/page.html").error(2)
    printed = dg_lsp(*command, "--html", "page.html").out
    page = Path("page.html").read_text()
    assert [page.count(f"<span>{level} at a time</span>") for level in (1, 2)] == [1, 1]
    assert re.search(r"2 at a time, 127\.0\.0\.1.*median", page)
    assert "canvas tokens/s" in page
    assert "canvas tokens/s" in printed
    assert "7 answers of 127.0.0.1" in page
    assert "alpha" not in page


def test_requests_are_open_at_the_same_time(dg_lsp, start, prompts):
    together = threading.Barrier(3)

    def answer(_server, connection):
        together.wait(30)
        connection.sendall(streamed("beta"))
        connection.close()

    server = start(answer)
    options = ("--concurrency", "3", "--rounds", "1", "--warm-up", "3", "--json")
    tree = dg_lsp("bench", "serve", server.url, "--prompts", prompts, *options).json
    [one] = tree["levels"][0]["servers"].values()
    assert (one["num_answers"], one["num_errors"]) == (6, 0)
    assert (one["tokens_per_s"], one["blocks_per_s"], one["canvas_tokens_per_s"]) == (None, None, None)


def test_refusals_and_errors_are_no_answers_and_are_not_sent_again(dg_lsp, start, prompts):
    refused = reply("{}", "503 Service Unavailable", Retry_After="30")
    server = start(streamed("alpha"), refused, refused, reply("{}", "500 Oops"), streamed("alpha"))
    options = ("--prompts", prompts, "--rounds", "2", "--warm-up", "1")
    out = dg_lsp("bench", "serve", server.url, *options).out
    assert len(server.requests) == 1 + 6
    cells = [line.strip("| ").split(" | ") for line in out.splitlines()]
    table = {row[0]: row[1] for row in cells if len(row) == 2}
    assert (table["answers"], table["refused"], table["errors"]) == ("3", "2", "1")
    assert table["requests with a useful first line"] == "25.0%", "of two requests twice, two of them refused"
    assert not any(name.startswith(("GPU", "tokens", "blocks")) for name in table)
    assert "fails with status 500" in out


def test_two_servers_take_turns_and_get_the_same_requests(dg_lsp, start, prompts):
    one, other = start(streamed("alpha", **COUNTS)), start(reply('{"content": "alpha", "stop": true}'))
    options = ("--prompts", prompts, "--api", "completions", "--api", "infill", "--rounds", "2", "--limit", "2")
    tree = dg_lsp("bench", "serve", one.url, other.url, *options, "--json").json
    [level] = tree["levels"]
    ours, theirs = level["servers"].values()
    assert list(level["servers"]) == [f"127.0.0.1:{one.port}", f"127.0.0.1:{other.port}"]
    assert (ours["num_answers"], theirs["num_answers"]) == (4, 4)
    ratio = level["ratio"]
    assert ratio["latency_p50_ms"] == pytest.approx(ours["latency_p50_ms"] / theirs["latency_p50_ms"], abs=1e-4)
    assert "num_answers" not in ratio
    assert "tokens_per_s" not in ratio  # the second server reports none
    first = sorted(body(request)["seed"] for request in one.requests)
    assert first == sorted(body(request)["seed"] for request in other.requests)
    printed = dg_lsp("bench", "serve", one.url, other.url, *options).out
    assert "| measure |" in printed
    assert "| ratio |" in printed
    assert f"{other.url} by infill" in printed


@pytest.fixture
def our_server():
    starter = Starter()
    yield lambda denoiser: f"http://127.0.0.1:{starter(denoiser).port}"
    starter.close()


@pytest.mark.parametrize("api", ["completions", "infill"])
def test_our_own_server_reports_its_canvases(dg_lsp, prompts, our_server, api):
    prompts.write_text(json.dumps(PROMPTS[0]) + "\n")
    command = ("bench", "serve", our_server(ScriptedDenoiser("alpha")), "--prompts", prompts, "--api", api)
    [level] = dg_lsp(*command, "--rounds", "1", "--concurrency", "2", "--json").json["levels"]
    [one] = level["servers"].values()
    assert (one["num_answers"], one["num_errors"], one["useful"]) == (4, 0, 1.0)
    assert min(one["tokens_per_s"], one["canvas_tokens_per_s"], one["blocks_per_s"]) > 0


def test_a_prompt_without_a_suffix_is_the_message_of_a_chat(dg_lsp, prompts, our_server):
    prompts.write_text(json.dumps(PROMPTS[2]) + "\n")
    command = ("bench", "serve", our_server(chatty("Blue.")), "--prompts", prompts, "--api", "chat")
    [level] = dg_lsp(*command, "--rounds", "1", "--json").json["levels"]
    [one] = level["servers"].values()
    assert (one["num_answers"], one["num_errors"], one["useful"]) == (2, 0, None)
    assert one["tokens_per_s"] > 0


def test_an_answer_after_the_time_limit_is_an_error(start):
    server = start(silent)
    model = RemoteModel(RemoteSettings(server.url), is_measured=True)
    prompts = read_prompts(Path(__file__).parents[1] / "bench/problems.jsonl")[:1]
    try:
        [one] = run_load({"slow": model}, prompts, LoadPlan((1,), 1, 0, 8, answer_seconds=0.05))
    finally:
        model.close()
    assert {answer.error for answer in one.answers} == {f"127.0.0.1:{server.port} does not finish within 0.05 s"}
    assert summarize_load([one])["latency_p50_ms"] is None


def test_the_numbers_of_a_level():
    answers = [
        LoadAnswer(prompt="a", latency_ms=100, first_line_ms=40, is_useful=True, output_tokens=10),
        LoadAnswer(prompt="b", latency_ms=300, first_line_ms=60, is_useful=False, output_tokens=20),
        LoadAnswer(prompt="c", latency_ms=1, is_useful=False, is_refused=True),
        LoadAnswer(prompt="d", latency_ms=1, is_useful=False, error="lost"),
        LoadAnswer(prompt="e", latency_ms=1, is_refused=True),  # without a reference
    ]
    summary = summarize_load([LoadRound("s", 2, 0.5, tuple(answers), None), LoadRound("s", 2, 1.5, (), None)])
    assert summary["latency_p50_ms"] == 200
    assert summary["latency_p95_ms"] == 290
    assert (summary["first_line_p50_ms"], summary["first_useful_line_p50_ms"], summary["useful"]) == (50, 40, 0.25)
    assert (summary["requests_per_s"], summary["tokens_per_s"], summary["blocks_per_s"]) == (1, 15, None)
    assert (summary["num_answers"], summary["num_refused"], summary["num_errors"]) == (2, 2, 1)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("[]", "not an object"),
        ('{"suffix": "x"}', "no prompt"),
        ('{"prompt": 1}', "prompt is not a string"),
        ('{"prompt": "x", "suffix": 1}', "suffix or path is not a string"),
        ("", "has no prompts"),
    ],
)
def test_prompts_in_another_format_are_refused(dg_lsp, tmp_path, line, problem):
    path = tmp_path / "bad.jsonl"
    path.write_text(f"\n{line}\n")
    assert problem in dg_lsp("bench", "serve", "http://127.0.0.1:1", "--prompts", path).error(2)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--concurrency", "1,x"), "--concurrency 1,x: give numbers from 1 to 512"),
        (("--concurrency", "0"), "--concurrency 0"),
        (("http://b", "http://c"), "two servers at most"),
        (("--api", "chat", "--api", "chat"), "--api is given 2 times for 1 server"),
        (("--api", "other"), "api must be one of completions, infill, chat"),
    ],
)
def test_wrong_use_is_refused(dg_lsp, prompts, arguments, problem):
    assert problem in dg_lsp("bench", "serve", "http://127.0.0.1:1", *arguments, "--prompts", prompts).error(2)


def test_a_server_that_answers_no_warm_up_ends_the_run(dg_lsp, start, prompts):
    server = start(reply("{}", "404 Not Found"))
    message = dg_lsp("bench", "serve", server.url, "--prompts", prompts).error(3)
    assert "no such model (status 404)" in message
    assert len(server.requests) == 2


def test_sample_positions_are_the_default_prompts(dg_lsp, start, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2])
    server = start(streamed("2 * math.pi * self.radius", **COUNTS))
    tree = dg_lsp("bench", "serve", server.url, "--rounds", "1", "--limit", "3", "--json").json
    [one] = tree["levels"][0]["servers"].values()
    assert one["num_answers"] == 3
