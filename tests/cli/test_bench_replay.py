from functools import partial

import pytest

from dg_lsp.backends.scripted import ScriptedDenoiser
from dg_lsp.bench.replay.asking import LiveAsker
from dg_lsp.bench.replay.keys import Typist
from dg_lsp.bench.runs import Run
from dg_lsp.cli.bench import opening, replaying
from dg_lsp.engine.engine import Engine

CODE = 'def area(width, height):\n    """Of a rectangle."""\n    return width * height\n\n\nprint(area(1, 2))\n'


class Interrupted(ScriptedDenoiser):
    """Ctrl-C comes in the step whose number it is told."""

    at = 0

    def predict(self, *args, **kwargs):
        if self.num_steps + 1 == self.at:
            raise KeyboardInterrupt
        return super().predict(*args, **kwargs)


@pytest.fixture
def model(monkeypatch, tmp_path):
    """The scripted model that the command opens; `model.at` interrupts it."""
    weights = tmp_path / "weights.gguf"
    weights.write_bytes(b"scripted")
    denoiser = Interrupted(lambda prefix, _: "width * height" if prefix.endswith("return ") else "")

    def open_model(settings):
        return opening.OpenedModel(Engine(denoiser, denoiser.tokenizer, settings.fill), weights, 1)

    monkeypatch.setattr(opening, "open_model", open_model)
    # a clock that stands still: the model takes no time, however busy this machine is
    monkeypatch.setattr(replaying, "LiveAsker", partial(LiveAsker, clock=lambda: 0.0))
    (tmp_path / "dg-lsp.toml").write_text('[fill]\ndeadline_ms = 600000.0\ndecoder = "diffusion"\n')
    return denoiser


@pytest.fixture
def code(tmp_path):
    path = tmp_path / "area.py"
    path.write_text(CODE)
    return path


def test_a_table_says_what_was_assumed_and_what_came_out(dg_lsp, model, code):
    outcome = dg_lsp("bench", "replay", code, "--start", 6)
    assert outcome.code == 0
    assert outcome.err == ""
    assert "what comes before in the file is there, nothing after the cursor" in outcome.out
    assert "| keystrokes saved | " in outcome.out
    assert model.is_closed


def test_one_json_object(dg_lsp, model, code):
    outcome = dg_lsp("bench", "replay", code, "--region", "3-3", "--json", "--seed", 3, "--debounce", 0)
    told = outcome.json
    assert told["buffer"] == "region"
    assert told["lines"] == [[3, 3]]
    assert (told["seed"], told["editor"]["debounce_ms"]) == (3, 0)
    assert told["is_complete"] is True
    assert told["model"] == "scripted"
    assert told["length_knowledge"] == "none"
    # a model that takes no time is never cancelled
    assert told["cancelled"] == 0
    assert told["accepted"]["whole"] == 1
    assert told["keystrokes"]["by_hand"] == len("return width * height")
    assert told["keystrokes_saved"] > 0.4


def test_a_typist_who_is_faster_than_the_reader_is_spared_nothing(dg_lsp, model, code):
    told = dg_lsp("bench", "replay", code, "--region", "3-3", "--json", "--reaction", 100_000).json
    assert told["keystrokes_saved"] == 0
    assert told["acceptance_rate"] == 0
    assert told["typed_through"] == 1


def test_bodies_and_start_choose_what_is_typed(dg_lsp, model, code):
    bodies = dg_lsp("bench", "replay", code, "--bodies", "--json").json
    assert (bodies["buffer"], bodies["lines"]) == ("bodies", [[3, 3]])
    onwards = dg_lsp("bench", "replay", code, "--start", 6, "--json").json
    assert (onwards["buffer"], onwards["lines"]) == ("onwards", [[6, 7]])
    assert onwards["keystrokes"]["by_hand"] == len("print(area(1, 2))\n")


def test_several_files_and_a_limit_for_each(dg_lsp, model, code, tmp_path):
    other = tmp_path / "other.py"
    other.write_text("x = 1\n")
    told = dg_lsp("bench", "replay", code, other, other, "--limit", 2, "--json", "--decoder", "diffusion").json
    assert told["num"] == 4
    assert told["decoder"] == "diffusion"
    assert [name.rsplit("/", 1)[-1] for name in told["files"]] == ["area.py", "other.py"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--region", "3"], "--region takes FIRST-LAST"),
        (["--region", "3-2"], "choose lines from 1 to 7"),
        (["--region", "4-5"], "nothing to type"),
        (["--start", "9"], "choose lines from 1 to 7"),
        (["--region", "1-2", "--bodies"], "exclude each other"),
        (["--start", "2", "--bodies"], "exclude each other"),
        (["--html", "gone/page.html"], "no directory gone"),
        (["--output", "gone/run.jsonl"], "cannot write gone/run.jsonl"),
        (["--limit", "0"], "--limit"),
        (["--type-through", "x"], "--type-through"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(dg_lsp, model, code, options, message):
    outcome = dg_lsp("bench", "replay", code, *options)
    assert outcome.code == 2
    assert message in outcome.err
    assert outcome.err.count("\n") == 1
    assert model.num_steps == 0


def test_a_missing_file_is_told_before_the_model_is_opened(dg_lsp, model):
    outcome = dg_lsp("bench", "replay", "gone.py")
    assert (outcome.code, model.is_closed) == (2, False)
    assert "gone.py" in outcome.err


def test_ctrl_c_keeps_what_is_done_and_a_later_run_goes_on(dg_lsp, model, code, tmp_path):
    output = tmp_path / "run.jsonl"
    model.at = 8
    stopped = dg_lsp("bench", "replay", code, "--start", 6, "--json", "--output", output)
    assert stopped.code == 130
    assert stopped.json["is_complete"] is False
    assert stopped.json["num"] == len(Run.read(output).attempts) == 7

    model.at = 0
    went_on = dg_lsp("bench", "replay", code, "--start", 6, "--json", "--output", output)
    assert went_on.code == 0
    assert went_on.json["is_complete"] is True
    attempts = Run.read(output).attempts
    assert went_on.json["num"] == len(attempts)
    assert [attempt.site for attempt in attempts][:2] == [f"{code}:6:1", f"{code}:6:2"]

    again = dg_lsp("bench", "replay", code, "--start", 6, "--json", "--output", output)
    assert again.json == went_on.json
    assert model.num_steps == sum(attempt.steps for attempt in attempts)


def test_another_typist_is_another_run(dg_lsp, model, code, tmp_path):
    output = tmp_path / "run.jsonl"
    assert dg_lsp("bench", "replay", code, "--limit", 2, "--output", output).code == 0
    assert dg_lsp("bench", "replay", code, "--limit", 3, "--output", output).code == 0
    outcome = dg_lsp("bench", "replay", code, "--limit", 3, "--output", output, "--seed", 1)
    assert outcome.code == 2
    assert "options.seed" in outcome.err


def test_a_page_of_it(dg_lsp, model, code, tmp_path):
    page = tmp_path / "page.html"
    assert dg_lsp("bench", "replay", code, "--region", "3-3", "--html", page).code == 0
    text = page.read_text(encoding="utf-8")
    assert "Typing beside the model" in text
    assert "keystrokes saved" in text


def test_the_help_names_the_defaults(dg_lsp, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    told = dg_lsp("bench", "replay", "--help").out
    assert f"{Typist().reaction_ms}" in told
    assert "50.0" in told


def test_the_bundled_model_types_along(dg_lsp, code):
    told = dg_lsp(
        "bench", "replay", code, "--region", "3-3", "--limit", 3, "--json", "--threads", 1, "--gpu-layers", 0
    ).json
    assert (told["model"], told["num"]) == ("dg-mini", 3)
    assert told["model_ms"] > 0
