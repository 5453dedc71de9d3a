import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import attrs
import pytest

from dg_lsp.backends.scripted import ScriptedDenoiser
from dg_lsp.bench.runs import Run
from dg_lsp.bench.sites import read_sites
from dg_lsp.cli.bench import opening
from dg_lsp.engine.engine import Engine

PROBLEMS = Path(__file__).parents[1] / "bench" / "problems.jsonl"
WANTED = {site.prefix[-20:]: site.want for site in read_sites(PROBLEMS)}


@pytest.fixture
def data(tmp_path):
    shutil.copy(PROBLEMS, tmp_path / "problems.jsonl")
    return "problems.jsonl"


@pytest.fixture
def model(monkeypatch, tmp_path):
    """Knows all references; `interrupt_at` presses Ctrl-C when the model is asked so many times."""

    held = SimpleNamespace(interrupt_at=None, asked=[], denoiser=None)
    (tmp_path / "weights").write_bytes(b"0")

    def fill(prefix, suffix):
        if prefix[-20:] not in held.asked:
            held.asked.append(prefix[-20:])
        if len(held.asked) == held.interrupt_at:
            raise KeyboardInterrupt
        return WANTED[prefix[-20:]]

    def open_model(settings):
        held.denoiser = ScriptedDenoiser(fill, tokens_per_step=64)
        held.asked.clear()
        fill_settings = attrs.evolve(settings.fill, max_tokens=500)  # a token is a byte here
        engine = Engine(held.denoiser, held.denoiser.tokenizer, fill_settings)
        return opening.OpenedModel(engine, tmp_path / "weights", threads=1)

    monkeypatch.setattr(opening, "open_model", open_model)
    return held


def test_json_is_one_object_and_nothing_else(dg_lsp, data, model):
    outcome = dg_lsp("bench", "infill", data, "--length", "oracle", "--json")
    assert outcome.code == 0
    assert outcome.err == ""
    assert outcome.out.count("\n") == 1
    tree = outcome.json
    assert (tree["num"], tree["exact_match"], tree["miss_rate"]) == (5, 1.0, 0.0)
    assert (tree["pass_at_1"], tree["length_knowledge"], tree["model"]) == (None, "oracle", "scripted")
    assert tree["ttfue_ms"]["p50"] > 0
    assert model.denoiser.is_closed


def test_a_person_gets_a_table_and_what_it_assumes(dg_lsp, data, model):
    outcome = dg_lsp("bench", "infill", data)
    assert outcome.code == 0
    assert "nothing was known of the length" in outcome.out
    assert "| span | 2 | 50.0 | 100.0 |" in outcome.out
    assert "| all | 5 | 80.0 | 100.0 |" in outcome.out


def test_on_a_terminal_there_is_a_bar(dg_lsp, data, model, monkeypatch):
    for name, value in (("TTY_COMPATIBLE", "1"), ("TTY_INTERACTIVE", "1"), ("COLUMNS", "100")):
        monkeypatch.setenv(name, value)
    dg_lsp("bench", "infill", data, "--limit", "3", "--output", "run.jsonl")
    outcome = dg_lsp("bench", "infill", data, "--output", "run.jsonl", "--json")
    assert outcome.json["num"] == 5
    assert "3/5" in outcome.err  # where an earlier session stopped
    assert "5/5" in outcome.err
    assert "left" in outcome.err


def test_execution_is_announced_once_and_judges(dg_lsp, data, model):
    outcome = dg_lsp("bench", "infill", data, "--execute", "--max-lines", "9", "--json")
    assert outcome.code == 0
    assert outcome.err.count("model wrote") == 1
    assert outcome.err.count("\n") == 1
    assert (outcome.json["pass_at_1"], outcome.json["length_knowledge"]) == (1.0, "given")


def test_a_limit_draws_by_the_seed(dg_lsp, data, model):
    runs = {}
    for seed in (0, 1, 2):
        name = f"{seed}.jsonl"
        dg_lsp("bench", "infill", data, "--limit", "2", "--seed", seed, "--output", name)
        runs[seed] = [attempt.site for attempt in Run.read(Path(name)).attempts]
    assert {len(sites) for sites in runs.values()} == {2}
    assert len({tuple(sites) for sites in runs.values()}) > 1


def test_a_run_is_continued_and_a_complete_one_asks_nothing(dg_lsp, data, model):
    command = ("bench", "infill", data, "--output", "run.jsonl", "--json")
    assert dg_lsp(*command, "--limit", "2").json["num"] == 2
    assert len(model.asked) == 2
    assert dg_lsp(*command).json["num"] == 5
    assert len(model.asked) == 3
    first = Path("run.jsonl").read_bytes()
    assert dg_lsp(*command).json["num"] == 5
    assert model.asked == []
    assert Path("run.jsonl").read_bytes() == first
    # what an earlier session did beyond a smaller limit is not counted
    assert dg_lsp(*command, "--limit", "2").json["num"] == 2


@pytest.mark.parametrize(
    "option", ["--execute", "--warm", "--length=oracle", "--decoder=diffusion", "--suffix-lines=1"]
)
def test_a_run_of_another_kind_is_not_continued(dg_lsp, data, model, option):
    command = ("bench", "infill", data, "--output", "run.jsonl")
    dg_lsp(*command, "--limit", "1")
    before = Path("run.jsonl").read_bytes()
    outcome = dg_lsp(*command, option)
    assert outcome.code == 2
    assert "holds a run of another kind" in outcome.err
    assert Path("run.jsonl").read_bytes() == before


def test_ctrl_c_keeps_what_is_done(dg_lsp, data, model):
    model.interrupt_at = 3
    outcome = dg_lsp("bench", "infill", data, "--output", "run.jsonl", "--html", "out.html", "--json")
    assert outcome.code == 130
    assert outcome.json["num"] == 2
    assert len(Run.read(Path("run.jsonl")).attempts) == 2
    assert "Interrupted" in Path("out.html").read_text(encoding="utf-8")
    assert model.denoiser.is_closed
    model.interrupt_at = None
    assert dg_lsp("bench", "infill", data, "--output", "run.jsonl", "--json").json["num"] == 5
    assert len(model.asked) == 3


def test_ctrl_c_at_once_still_answers(dg_lsp, data, model):
    model.interrupt_at = 1
    outcome = dg_lsp("bench", "infill", data, "--html", "out.html")
    assert outcome.code == 130
    assert "| all | 0 |" in outcome.out
    assert not Path("out.html").exists()


def test_a_page_is_written(dg_lsp, data, model):
    outcome = dg_lsp("bench", "infill", data, "--html", "out.html")
    assert outcome.code == 0
    page = Path("out.html").read_text(encoding="utf-8")
    assert "problems.jsonl" in page
    assert "Nothing was known of the length" in page
    assert "hand/block" in page  # a film


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        pytest.param(["--length", "some"], "none or oracle", id="no such word"),
        pytest.param(["--length", "oracle", "--max-lines", "2"], "leave one out", id="two answers to one question"),
        pytest.param(["--decoder", "magic"], "magic", id="no such decoder"),
        pytest.param(["--html", "gone/out.html"], "gone", id="no such folder"),
        pytest.param(["--limit", "0"], "--limit", id="no sites at all"),
    ],
)
def test_wrong_use_is_told_before_a_model_is_opened(dg_lsp, data, model, options, complaint):
    outcome = dg_lsp("bench", "infill", data, *options)
    assert outcome.code == 2
    assert complaint in outcome.err
    assert outcome.err.count("\n") == 1
    assert model.denoiser is None


def test_bad_data_is_told_before_a_model_is_opened(dg_lsp, model):
    Path("bad.jsonl").write_text('{"task_id": "a"}\n')
    for name, complaint in (("bad.jsonl", "line 1: no prompt"), ("gone.jsonl", "no such file")):
        outcome = dg_lsp("bench", "infill", name)
        assert outcome.code == 2
        assert complaint in outcome.err
    assert model.denoiser is None


def test_sites_without_tests_are_not_executed(dg_lsp, data, model):
    trees = [json.loads(line) for line in Path(data).read_text().splitlines()]
    Path(data).write_text("".join(json.dumps({**tree, "test": None}) + "\n" for tree in trees))
    outcome = dg_lsp("bench", "infill", data, "--execute")
    assert outcome.code == 2
    assert "no tests" in outcome.err
    assert model.denoiser is None


def test_the_bundled_model_answers(dg_lsp, data):
    options = ("--limit", "2", "--threads", "1", "--gpu-layers", "0", "--max-lines", "1")
    outcome = dg_lsp("bench", "infill", data, "--json", "--output", "run.jsonl", *options)
    assert outcome.code == 0
    tree = outcome.json
    assert (tree["num"], tree["model"], tree["length_knowledge"]) == (2, "dg-mini", "given")
    assert tree["latency_ms"]["p50"] > 0
    assert 0 <= tree["exact_match"] <= tree["first_line_match"] <= 1 - tree["miss_rate"] <= 1
    run = Run.read(Path("run.jsonl"))
    assert {attempt.site for attempt in run.attempts} <= {site.id for site in read_sites(PROBLEMS)}
    assert run.header.machine.threads == 1
