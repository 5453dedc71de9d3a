import json

from scripted import ScriptedDenoiser

from dg_benchmarks import steps
from dg_benchmarks.steps import main, measure_steps


def test_steps_are_measured_by_canvas_length():
    denoiser = ScriptedDenoiser("x", step_seconds=0.002)
    times = measure_steps(denoiser, 64, [8, 16], rounds=2)
    assert list(times.steps) == [8, 16]
    assert min(times.steps.values()) >= 2
    assert list(times.causal) == [1, 8, 16]
    assert min(times.causal.values()) >= 2
    assert times.one_token_steps == {length: ms / times.causal[1] for length, ms in times.steps.items()}
    # two rounds and a warm-up; each decodes the whole prompt and 8 of its last tokens again
    assert denoiser.num_prefilled == 3 * (1 + 64 + 0 + 8 + 0 + 0 + 0)
    assert denoiser.num_steps == 3 * (2 + 3)


def test_the_command_prints_json_or_tables(capsys, monkeypatch):
    monkeypatch.setattr(steps, "PROMPT_LENGTHS", (16, 64))
    monkeypatch.setattr(steps, "OVERHEAD_ROUNDS", 1)
    options = ["--model", "dg-mini", "--threads", "1", "--gpu-layers", "0", "--rounds", "1"]
    main([*options, "--json"])
    tree = json.loads(capsys.readouterr().out)
    assert (tree["model"], tree["threads"]) == ("dg-mini", 1)
    assert tree["overhead"]["engine"] > 0
    longest = max(tree["times"], key=int)
    assert list(tree["times"][longest]["causal"]) == ["1", "8", "16"]
    assert all(ratio > 0 for ratio in tree["times"][longest]["one_token_steps"].values())
    main(options)
    assert capsys.readouterr().out.count("\n|---") == 3
