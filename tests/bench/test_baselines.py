import dataclasses
import os
import signal
import sys

import numpy as np
import pytest

from dg_lsp.backends.llamacpp.denoiser import LlamaDenoiser
from dg_lsp.backends.llamacpp.masked import ExactDenoiser
from dg_lsp.backends.llamacpp.model import LlamaModel
from dg_lsp.backends.scripted import MASK_SPEC
from dg_lsp.bench.baselines import LlamaDiffusionCli, LlamaServer, write_as_rnd1
from dg_lsp.bench.contenders import LengthHint, RequestOptions
from dg_lsp.bench.dataset import TestCase
from dg_lsp.canvas.layout import token_ids
from dg_lsp.canvas.spec import FimOrder
from dg_lsp.cli import loading
from dg_lsp.errors import BackendError, UsageError
from dg_lsp.settings import ModelSettings, Settings

LINE = TestCase("s1", "line-end", "def area(w, h):\n    return ", "\n\nprint(area(2, 3))\n", "w * h")
BLOCK = TestCase("s2", "block", "def area(w, h):\n", "\n\nprint(area(2, 3))\n", "    a = w * h\n    return a")
SPEC = dataclasses.replace(MASK_SPEC, max_prompt_tokens=300)
DEFAULTS = RequestOptions()
RUNTIME = ModelSettings(threads=1, gpu_layers=0, num_slots=1)


@pytest.fixture
def server(tmp_path, make_fake):
    """Starts a server with these answers and closes it after the test; returns the contender and the program."""
    started = []

    def start(options=DEFAULTS, spec=SPEC, gpu_layers=-1, **answers):
        fake = make_fake("server", **{"content": "w * h", **answers})
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
    before, now = fake.queries[-2:]
    assert (before["n_predict"], before["input_prefix"], now["input_prefix"]) == (0, LINE.prefix[:-1], LINE.prefix)
    assert now["t_max_predict_ms"] == -1


def test_answers_are_cut_to_the_lines_that_we_would_show(server):
    assert server(content="w * h \n")[0].answer(LINE).is_exact
    oracle = RequestOptions(LengthHint.ORACLE)
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


def test_closing_stops_the_server(server):
    contender, _ = server()
    contender.close()
    contender.close()
    with pytest.raises(ProcessLookupError):
        os.kill(contender._process.pid, signal.SIG_DFL)


@pytest.fixture(scope="module")
def bundled():
    model = loading.load_model(Settings(model=RUNTIME))
    yield model
    model.weights.close()


@pytest.fixture
def command(make_fake, bundled):
    """A contender over a fake llama-diffusion-cli with these answers; returns the contender and the program."""
    made = []

    def make(num_steps=0, **answers):
        fake = make_fake("command", **{"ms": 48.5, **answers})
        tokenizer = bundled.weights.tokenizer
        made.append(
            LlamaDiffusionCli(fake.program, bundled.path, bundled.spec, tokenizer, threads=2, num_steps=num_steps)
        )
        return made[-1], fake

    yield make
    for contender in made:
        contender.close()


def test_an_answer_of_llama_diffusion_cli_has_the_time_of_its_denoising(command):
    contender, _ = command(content="w * h<|eom|><|eom|>\nrest")
    assert len(contender.notes) == 1
    attempt = contender.answer(LINE)
    assert (attempt.case, attempt.kind, attempt.contender) == ("s1", "line-end", "llama-diffusion-cli")
    assert attempt.is_exact
    assert attempt.latency_ms == attempt.model_ms == attempt.ttfue_ms == 48.5
    assert attempt.steps == attempt.tokens == 16
    assert "start of the process and the load of the model" in contender.notes[1]


def test_llama_diffusion_cli_gets_our_prompt_and_a_canvas(command, bundled):
    contender, fake = command(content="w * h\n    return")
    assert contender.answer(LINE).text == "w * h"
    assert fake.option("--prompt") == f"<|suffix|>{LINE.suffix}<|prefix|>{LINE.prefix}<|middle|>"
    encode = bundled.weights.tokenizer.encode
    num_prompt_tokens = len(encode(LINE.suffix)) + len(encode(LINE.prefix)) + 3
    sizes = {fake.option(f"--{name}") for name in ("ctx-size", "batch-size", "ubatch-size")}
    assert sizes == {str(num_prompt_tokens + 16)}
    assert [fake.option(f"--{name}") for name in ("diffusion-steps", "threads", "threads-batch")] == ["16", "2", "2"]


def test_a_block_gets_a_longer_canvas_and_an_empty_answer_is_rejected(command):
    contender, fake = command(content="    a = w * h\n    return a<|eom|>")
    attempt = contender.answer(BLOCK)
    assert attempt.is_exact
    assert (attempt.steps, attempt.tokens, fake.option("--diffusion-steps")) == (32, 32, "32")
    empty = command(content="<|eom|>")[0].answer(LINE)
    assert (empty.text, empty.rejection) == ("", "empty")


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ({"ends": "unsupported model"}, r"failed \(exit code 1\): error: unsupported model"),
        ({"crashes": True}, r"failed \(SIGILL\): packing"),
        ({"ms": None}, "printed no times"),
    ],
)
def test_failures_of_llama_diffusion_cli_are_quoted(command, answers, message):
    contender, _ = command(content="x", **answers)
    with pytest.raises(BackendError, match=message):
        contender.answer(LINE)


def test_a_rewritten_model_computes_the_same(bundled, tmp_path):
    denoiser = LlamaDenoiser(bundled.weights, bundled.spec, RUNTIME)
    names = write_as_rnd1(bundled.path, tmp_path / "rnd1.gguf", bundled.spec)
    assert names == ["<|prefix|>", "<|suffix|>", "<|middle|>", "<|eom|>"]
    rewritten = LlamaModel.load(tmp_path / "rnd1.gguf", RUNTIME)
    assert rewritten.metadata["general.architecture"] == "rnd1"
    spec = dataclasses.replace(bundled.spec, max_prompt_tokens=64)
    other = ExactDenoiser(rewritten, spec, RUNTIME)
    rng = np.random.default_rng(0)
    prompt = denoiser.tokenizer.encode("def area(w, h):\n    return ")
    np.testing.assert_array_equal(other.tokenizer.encode("def area(w, h):\n    return "), prompt)
    canvas = np.full(16, bundled.spec.sampling.mask_id, np.int32)
    # in llama.cpp's own diffusion the prompt sees the canvas: for us both are one canvas after an empty prompt
    denoiser.prefill(0, token_ids([]))
    (ours,) = denoiser.predict(0, [token_ids(np.concatenate([prompt, canvas]))], 0.0, rng)
    other.prefill(0, prompt)
    (theirs,) = other.predict(0, [token_ids(canvas)], 0.0, rng)
    other.close()
    # other kernels compute the layers
    np.testing.assert_allclose(theirs.confidence, ours.confidence[len(prompt) :], atol=3e-2)
    assert len(np.unique(ours.confidence)) > 8


def test_a_model_that_cannot_be_rewritten_is_refused(bundled, tmp_path, monkeypatch):
    path = tmp_path / "rnd1.gguf"
    write_as_rnd1(bundled.path, path, bundled.spec)
    with pytest.raises(UsageError, match="use dg-mini"):
        write_as_rnd1(path, tmp_path / "again.gguf", bundled.spec)
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(UsageError, match=r"pip install '\.\[dev\]'"):
        write_as_rnd1(bundled.path, path, bundled.spec)
