import dataclasses
import os
import signal

import pytest

from dg_lsp.backends.scripted import MASK_SPEC
from dg_lsp.bench.sites import Site
from dg_lsp.bench.ways import Terms
from dg_lsp.bench.ways_server import ServerProcess, ServerWay
from dg_lsp.canvas.spec import FimOrder
from dg_lsp.errors import BackendError, UsageError

SITE = Site("s1", "line-end", "def area(w, h):\n    return ", "\n\nprint(area(2, 3))\n", "w * h")
TERMS = Terms()
SPEC = dataclasses.replace(MASK_SPEC, max_prompt_tokens=300)
BLOCK = Site("s2", "block", "def area(w, h):\n", "\n\nprint(area(2, 3))\n", "    a = w * h\n    return a")


@pytest.fixture
def server(tmp_path, make_peer):
    """Starts a server that says something; stops it after the test. Gives the way and the peer."""
    started = []

    def start(terms=TERMS, spec=SPEC, gpu_layers=-1, **says):
        peer = make_peer("server", **{"content": "w * h", **says})
        options = {"threads": 3, "gpu_layers": gpu_layers, "max_tokens": 48}
        way = ServerWay.start(peer.program, tmp_path / "model.gguf", spec, terms, **options)
        started.append(way)
        return way, peer

    yield start
    for way in started:
        way.close()


def test_an_answer_is_an_attempt(server):
    way, _ = server()
    attempt = way.answer(SITE)
    assert (attempt.site, attempt.kind, attempt.way, attempt.decoder) == (
        "s1",
        "line-end",
        "llama-server",
        "autoregressive",
    )
    assert attempt.text == "w * h"
    assert attempt.is_exact
    assert attempt.is_useful
    assert (attempt.steps, attempt.tokens) == (3, 3)
    assert (attempt.prefill_ms, attempt.model_ms) == (5.5, 13.0)
    assert attempt.ttfue_ms == attempt.latency_ms > 0


def test_it_runs_with_our_model_threads_and_prompt_length(server, tmp_path):
    _, peer = server()
    assert peer.option("--model") == str(tmp_path / "model.gguf")
    assert peer.option("--threads") == peer.option("--threads-batch") == "3"
    assert peer.option("--batch-size") == "300"
    assert int(peer.option("--ctx-size")) >= 300 + 48
    assert peer.option("--host") == "127.0.0.1"
    assert "--spm-infill" in peer.arguments
    assert "--n-gpu-layers" not in peer.arguments


def test_a_model_that_wants_the_prefix_first_gets_it_first(server):
    _, peer = server(spec=dataclasses.replace(SPEC, fim=dataclasses.replace(SPEC.fim, order=FimOrder.PREFIX_FIRST)))
    assert "--spm-infill" not in peer.arguments


def test_it_keeps_to_the_cpu_when_we_do(server):
    _, peer = server(gpu_layers=0)
    assert peer.option("--n-gpu-layers") == "0"


def test_it_is_asked_greedily_for_what_we_would_show(server):
    way, peer = server(terms=Terms(early_stop_ms=150.0))
    way.answer(SITE)
    way.answer(BLOCK)
    line, block = peer.questions
    assert line["input_prefix"] == SITE.prefix
    assert line["input_suffix"] == SITE.suffix
    assert (line["stop"], block["stop"]) == (["\n"], [])
    assert line["n_predict"] == 48
    assert line["temperature"] == 0
    assert line["cache_prompt"] is True
    assert line["t_max_predict_ms"] == 150
    assert peer.records[-1]["path"] == "/infill"


def test_without_patience_it_has_all_the_time(server):
    way, peer = server()
    way.answer(BLOCK)
    assert peer.questions[0]["t_max_predict_ms"] == -1


def test_a_warm_server_has_seen_the_text_before(server):
    way, peer = server(terms=Terms(is_warm=True))
    way.answer(SITE)
    before, now = peer.questions
    assert before["n_predict"] == 0
    assert before["input_prefix"] == SITE.prefix[:-1]
    assert now["input_prefix"] == SITE.prefix


def test_blanks_after_the_text_do_not_count_and_nothing_is_nothing(server):
    assert server(content="w * h \n")[0].answer(SITE).is_exact
    empty = server(content=" \n")[0].answer(SITE)
    assert empty.shown == ()
    assert empty.rejection == "empty"


def test_it_is_waited_for_until_the_model_is_loaded(server):
    way, _ = server(loading=3)
    assert way.answer(SITE).text == "w * h"


def test_a_server_that_ends_at_once_is_quoted(server):
    with pytest.raises(BackendError, match="ended before it was ready: error: no such model"):
        server(ends="no such model")


def test_a_server_that_crashes_over_packed_weights_gets_them_unpacked(server):
    way, peer = server(crashes=True)
    assert "--no-repack" in peer.arguments
    assert way.answer(SITE).is_exact
    assert any("--no-repack" in note for note in way.notes())


def test_a_server_is_not_told_to_unpack_for_nothing(server):
    way, peer = server()
    assert "--no-repack" not in peer.arguments
    assert len(way.notes()) == 1


def test_a_server_that_crashes_is_told_by_its_signal(make_peer):
    process = ServerProcess(make_peer("server", crashes=True).program, [])
    with pytest.raises(BackendError, match=r"ended before it was ready \(SIGILL\): packing"):
        process.wait()
    assert process.was_killed


def test_a_server_that_never_gets_ready_is_given_up(make_peer):
    process = ServerProcess(make_peer("server", loading=10**9).program, [])
    with pytest.raises(BackendError, match="not ready after 0 s"):
        process.wait(0.3)
    assert process._process.returncode == -signal.SIGTERM


def test_a_refusal_is_told_in_the_servers_words(server):
    way, _ = server(status=501, message="Infill is not supported by this model")
    with pytest.raises(BackendError, match=r"refused /infill \(status 501\): Infill is not supported"):
        way.answer(SITE)


def test_a_server_that_falls_over_is_quoted(server):
    way, _ = server(drops=True)
    with pytest.raises(BackendError, match=r"does not answer .*: fatal error: out of cake"):
        way.answer(SITE)


@pytest.mark.parametrize("name", ["gone", "folder", "text"])
def test_what_is_no_program_is_wrong_use(tmp_path, name):
    (tmp_path / "folder").mkdir()
    (tmp_path / "text").write_text("no program")
    with pytest.raises(UsageError, match=r"cannot run .*give llama-server's path"):
        ServerProcess(tmp_path / name, [])


def test_closing_ends_the_process(server):
    way, _ = server()
    pid = way._process._process.pid
    way.close()
    way.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_server_that_does_not_want_to_end_is_ended(make_peer, monkeypatch):
    peer = make_peer("server", before="import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)")
    process = ServerProcess(peer.program, [])
    process.wait()
    monkeypatch.setattr("dg_lsp.bench.ways_server.STOP_SECONDS", 0.1)
    process.close()
    assert process._process.returncode == -signal.SIGKILL


def test_a_model_without_fill_in_the_middle_cannot_take_part(server):
    with pytest.raises(UsageError, match="no fill-in-the-middle tokens"):
        server(spec=dataclasses.replace(SPEC, fim=None))


def test_told_how_many_lines_it_gives_as_many(server):
    way, peer = server(terms=Terms(is_oracle=True), content="    a = w * h\n    return a\n    more")
    assert way.answer(BLOCK).is_exact
    assert peer.questions[0]["stop"] == []
