import dataclasses

import pytest

from dg_lsp.bench.sites import Site
from dg_lsp.bench.ways_cli import CommandWay
from dg_lsp.cli import loading
from dg_lsp.errors import BackendError, UsageError
from dg_lsp.settings import RuntimeSettings, Settings

SITE = Site("s1", "line-end", "def area(w, h):\n    return ", "\n\nprint(area(2, 3))\n", "w * h")
BLOCK = Site("s2", "block", "def area(w, h):\n", "\n\nprint(area(2, 3))\n", "    a = w * h\n    return a")


@pytest.fixture(scope="module")
def bundled():
    """The model, loaded for its tokenizer."""
    model = loading.load_model(Settings(runtime=RuntimeSettings(gpu_layers=0)))
    yield model
    model.weights.close()


@pytest.fixture
def command(make_peer, bundled):
    """A way over a program that says something; closed after the test. Gives the way and the peer."""
    made = []

    def make(num_steps=0, **says):
        peer = make_peer("command", **{"ms": 48.5, **says})
        tokenizer = bundled.weights.tokenizer
        way = CommandWay(peer.program, bundled.path, bundled.spec, tokenizer, threads=2, num_steps=num_steps)
        made.append(way)
        return way, peer

    yield make
    for way in made:
        way.close()


def test_an_answer_is_an_attempt(command):
    way, _ = command(content="w * h<|eom|><|eom|>\nrest")
    attempt = way.answer(SITE)
    assert (attempt.site, attempt.kind, attempt.decoder) == ("s1", "line-end", "diffusion")
    assert attempt.way == "llama-diffusion-cli"
    assert attempt.text == "w * h"
    assert attempt.is_exact
    assert attempt.latency_ms == attempt.model_ms == attempt.ttfue_ms == 48.5
    assert attempt.steps == attempt.tokens == 16


def test_the_prompt_is_the_engines_and_the_canvas_follows_it(command, bundled):
    way, peer = command(content="")
    way.answer(SITE)
    assert peer.option("--prompt") == f"<|suffix|>{SITE.suffix}<|prefix|>{SITE.prefix}<|middle|>"
    encode = bundled.weights.tokenizer.encode
    num_prompt_tokens = len(encode(SITE.suffix)) + len(encode(SITE.prefix)) + 3
    assert int(peer.option("--ubatch-size")) == num_prompt_tokens + 16
    assert peer.option("--ctx-size") == peer.option("--batch-size") == peer.option("--ubatch-size")
    assert peer.option("--diffusion-steps") == "16"
    assert peer.option("--threads") == peer.option("--threads-batch") == "2"
    assert "--no-escape" in peer.arguments


def test_a_block_gets_a_longer_canvas_and_all_its_lines(command):
    way, peer = command(content="    a = w * h\n    return a<|eom|>")
    attempt = way.answer(BLOCK)
    assert attempt.is_exact
    assert (attempt.steps, attempt.tokens) == (32, 32)
    assert peer.option("--diffusion-steps") == "32"


def test_where_one_line_fits_one_is_taken(command):
    assert command(content="w * h\n    return")[0].answer(SITE).text == "w * h"


def test_fewer_steps_may_be_asked_for(command):
    way, peer = command(num_steps=8, content="x")
    assert way.answer(SITE).steps == 8
    assert peer.option("--diffusion-steps") == "8"


def test_nothing_is_nothing(command):
    attempt = command(content="<|eom|>")[0].answer(SITE)
    assert attempt.shown == ()
    assert attempt.rejection == "empty"


def test_the_start_of_the_process_is_told_apart(command):
    way, _ = command(content="x")
    assert len(way.notes()) == 1
    way.answer(SITE)
    assert "start of its process and the load of its model" in way.notes()[1]


@pytest.mark.parametrize("says", [{"ends": "unsupported model for diffusion"}, {"ms": 1.0, "ends": "no memory"}])
def test_a_failure_is_quoted(command, says):
    way, _ = command(**says)
    with pytest.raises(BackendError, match=rf"failed \(exit code 1\): error: {says['ends']}"):
        way.answer(SITE)


def test_a_crash_is_told_by_its_signal(command):
    way, _ = command(crashes=True)
    with pytest.raises(BackendError, match=r"failed \(SIGILL\): packing"):
        way.answer(SITE)


def test_an_answer_without_times_is_none(make_peer, bundled):
    peer = make_peer("command", content="x")
    way = CommandWay(peer.program, bundled.path, bundled.spec, bundled.weights.tokenizer, threads=1)
    with pytest.raises(BackendError, match="gave no answer"):
        way.answer(SITE)
    way.close()


def test_what_is_no_program_is_wrong_use(bundled, tmp_path):
    way = CommandWay(tmp_path / "gone", bundled.path, bundled.spec, bundled.weights.tokenizer, threads=1)
    with pytest.raises(UsageError, match=r"cannot run .*gone"):
        way.answer(SITE)
    way.close()


def test_closing_removes_the_model_that_was_written(command):
    way, _ = command()
    assert way._model.is_file()
    way.close()
    way.close()
    assert not way._model.exists()


def test_a_model_without_fill_in_the_middle_cannot_take_part(make_peer, bundled):
    spec = dataclasses.replace(bundled.spec, fim=None)
    with pytest.raises(UsageError, match="use dg-mini"):
        CommandWay(make_peer("command").program, bundled.path, spec, bundled.weights.tokenizer, threads=1)
