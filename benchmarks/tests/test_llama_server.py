import dataclasses

import pytest
from scripted import MASK_SPEC

from dg_benchmarks.llama_server import LlamaServer
from dg_lsp.bench.dataset import TestCase
from dg_lsp.bench.runner import RequestOptions
from dg_lsp.canvas.spec import FimOrder
from dg_lsp.errors import BackendError

LINE = TestCase("s1", "line-end", "def area(w, h):\n    return ", "\n\nprint(area(2, 3))\n", "w * h")
BLOCK = TestCase("s2", "block", "def area(w, h):\n", "\n\nprint(area(2, 3))\n", "    a = w * h\n    return a")
SPEC = dataclasses.replace(MASK_SPEC, max_prompt_tokens=300)
DEFAULTS = RequestOptions()


@pytest.fixture
def server(tmp_path, make_fake):
    """Starts a server with these answers and closes it after the test; returns the contender and the program."""
    started = []

    def start(options=DEFAULTS, spec=SPEC, gpu_layers=-1, **answers):
        fake = make_fake(**{"content": "w * h", **answers})
        numbers = {"threads": 3, "gpu_layers": gpu_layers, "max_tokens": 48}
        started.append(LlamaServer(fake.program, tmp_path / "model.gguf", spec, options, **numbers))
        return started[-1], fake

    yield start
    for contender in started:
        contender.close()


def test_an_answer_of_llama_server_has_its_costs(server):
    contender, _ = server()
    attempt = contender.answer(LINE)
    assert (attempt.case, attempt.kind, attempt.contender) == ("s1", "line-end", "llama-server")
    assert attempt.is_exact
    assert (attempt.steps, attempt.tokens) == (3, 3)
    assert (attempt.prefill_ms, attempt.model_ms) == (5.5, 13.0)
    assert attempt.ttfue_ms == attempt.latency_ms > 0


def test_llama_server_runs_with_our_model_threads_and_prompt_length(server, tmp_path):
    _, fake = server()
    assert fake.option("--model") == str(tmp_path / "model.gguf")
    assert fake.option("--threads") == fake.option("--threads-batch") == "3"
    assert (fake.option("--host"), fake.option("--batch-size")) == ("127.0.0.1", "300")
    assert int(fake.option("--ctx-size")) >= 300 + 48
    assert {"--spm-infill", "--n-gpu-layers", "--no-repack"} & {*fake.arguments} == {"--spm-infill"}
    prefix_first = dataclasses.replace(SPEC, fim=dataclasses.replace(SPEC.fim, order=FimOrder.PREFIX_FIRST))
    _, fake = server(spec=prefix_first, gpu_layers=0)
    assert "--spm-infill" not in fake.arguments
    assert fake.option("--n-gpu-layers") == "0"


def test_requests_to_llama_server_are_greedy_and_have_our_window(server):
    contender, fake = server(RequestOptions(early_stop_ms=150.0))
    contender.answer(LINE)
    contender.answer(BLOCK)
    line, block = fake.queries
    assert (line["input_prefix"], line["input_suffix"]) == (LINE.prefix, LINE.suffix)
    assert (line["stop"], block["stop"]) == (["\n"], [])
    assert (line["n_predict"], line["temperature"], line["cache_prompt"]) == (48, 0, True)
    assert line["t_max_predict_ms"] == 150
    assert fake.records[-1]["path"] == "/infill"
    contender, fake = server(RequestOptions(is_warm=True))
    contender.answer(LINE)
    before, current = fake.queries[-2:]
    assert (before["n_predict"], before["input_prefix"], current["input_prefix"]) == (0, LINE.prefix[:-1], LINE.prefix)
    assert current["t_max_predict_ms"] == -1


def test_answers_are_cut_to_the_lines_that_we_would_show(server):
    assert server(content="w * h \n")[0].answer(LINE).is_exact
    oracle = RequestOptions("oracle")
    assert server(oracle, content="    a = w * h\n    return a\n    more")[0].answer(BLOCK).is_exact
    empty = server(content=" \n")[0].answer(LINE)
    assert (empty.text, empty.rejection) == ("", "empty")


def test_a_crash_on_repacked_weights_is_retried_without_repacking(server):
    contender, fake = server(crashes=True)
    assert "--no-repack" in fake.arguments
    assert contender.answer(LINE).is_exact
    assert any("--no-repack" in note for note in contender.notes)


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ({"ends": "no such model"}, r"ended early \(exit code 1\): error: no such model"),
        ({"status": 501, "message": "Infill is not supported"}, r"refused /infill \(status 501\): Infill is not supp"),
    ],
    ids=["at the start", "refused"],
)
def test_failures_of_llama_server_are_quoted(server, answers, message):
    with pytest.raises(BackendError, match=message):
        server(**answers)[0].answer(LINE)
