from functools import partial

import pytest
from scripted import ScriptedDenoiser

from dg_lsp.bench import replay
from dg_lsp.bench.replay import Replay

HEAD = 'def area(width, height):\n    """Of a rectangle."""\n'
TAIL = "\n\n\nprint(area(1, 2))\n"
CODE = f"{HEAD}    return width * height{TAIL}"


@pytest.fixture
def model(bench_model, monkeypatch, tmp_path):
    """The scripted model of the command, which fills the line of `area.py` after `return`."""
    (tmp_path / "area.py").write_text(CODE)
    around = (f"{HEAD}    return ", TAIL)
    bench_model.model = ScriptedDenoiser(lambda *given: "width * height" if given == around else "")
    # the model takes no time, however busy this machine is
    monkeypatch.setattr(replay, "Replay", partial(Replay, clock=lambda: 0.0))
    (tmp_path / "dg-lsp.toml").write_text('[completion]\ndeadline_ms = 600000.0\ndecoder = "diffusion"\n')
    return bench_model.model


def test_a_terminal_gets_the_assumptions_and_a_table(dg_lsp, model):
    outcome = dg_lsp("bench", "replay", "area.py")
    assert (outcome.code, outcome.err) == (0, "")
    assert "Typing with the model" in outcome.out
    assert "the text before the typed lines in the file, and nothing after the cursor" in outcome.out
    assert f"| keys by hand | {len(CODE) - 8} |" in outcome.out, "a line end with the indentation is one key"
    assert model.is_closed


def test_json_has_the_options_and_the_numbers(dg_lsp, model):
    outcome = dg_lsp("bench", "replay", "area.py", "--region", "3-3", "--json", "--seed", 3, "--debounce", 0)
    tree = outcome.json
    assert (tree["region"], tree["seed"], tree["typing"]["debounce_ms"]) == ("3-3", 3, 0)
    assert tree["is_complete"] is True
    assert tree["model"] == "scripted"
    assert tree["length_knowledge"] == "none"
    # a model that takes no time is never cancelled
    assert tree["num_cancelled"] == 0
    assert tree["num_accepted"]["whole"] == 1
    assert tree["keys_by_hand"] == len("return width * height")
    assert tree["keystrokes_saved"] > 0.4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--region", "three"], "expected FILE:FIRST-LAST"),
        (["--region", "4-5"], "nothing to type"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(dg_lsp, model, options, message):
    assert message in dg_lsp("bench", "replay", "area.py", *options).error(2)
    assert model.num_steps == 0


def test_ctrl_c_keeps_the_finished_part(dg_lsp, model):
    predict = model.predict

    def interrupted(*arguments, **options):
        if model.num_steps == 7:
            raise KeyboardInterrupt
        return predict(*arguments, **options)

    model.predict = interrupted
    stopped = dg_lsp("bench", "replay", "area.py", "--region", "6-7", "--json")
    assert stopped.code == 130
    assert stopped.json["is_complete"] is False
    assert stopped.json["num"] == 7
