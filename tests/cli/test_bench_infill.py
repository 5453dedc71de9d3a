import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from dg_lsp.bench.dataset import read_cases
from dg_lsp.cli import bench

PROBLEMS = Path(__file__).parents[1] / "bench/problems.jsonl"
REFERENCES = {case.prefix[-20:]: case.reference for case in read_cases(PROBLEMS)}


PAGE = (Path(__file__).parents[2] / "docs/benchmarks.md").read_text(encoding="utf-8")
KEYS = list(json.loads(re.search(r"```json\n(.*?)```", PAGE, re.DOTALL)[1]))


@pytest.fixture
def model(bench_model, tmp_path):
    """Fills all references; `filled` has the cases so far, `interrupt_at` is the number of the one that gets Ctrl-C."""
    held = SimpleNamespace(interrupt_at=None, filled=[])
    (tmp_path / "dg-lsp.toml").write_text("[completion]\nmax_tokens = 500\n")  # a token is a byte here

    def fill(prefix, _suffix):
        if prefix[-20:] not in REFERENCES:  # a piece of a prompt
            return ""
        if prefix[-20:] not in held.filled:
            held.filled.append(prefix[-20:])
        if len(held.filled) == held.interrupt_at:
            raise KeyboardInterrupt
        return REFERENCES[prefix[-20:]]

    bench_model.fill = fill
    return held


def test_json_is_one_object_with_the_documented_keys(dg_lsp, data, model, script):
    outcome = dg_lsp("bench", "infill", data, "--length", "oracle", "--json")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.count("\n") == 1
    tree = outcome.json
    assert list(tree) == KEYS
    assert (tree["num"], tree["exact_match"], tree["miss_rate"]) == (5, 1.0, 0.0)
    assert (tree["pass_at_1"], tree["length_knowledge"], tree["model"]) == (None, "oracle", "scripted")
    assert 0 < tree["ttfue_ms"]["p50"] <= tree["latency_ms"]["p50"]
    num_tokens = sum(len(reference) + 1 for reference in REFERENCES.values())  # bytes, and the end of each
    assert tree["steps_mean"] * tree["tokens_per_forward"] == pytest.approx(num_tokens / 5, rel=1e-3)
    assert 0 < tree["tasks"][0]["model_ms_per_right"] < tree["latency_ms"]["p95"]
    assert sum(row["num"] for row in tree["calibration"]) == 5
    assert script.denoiser.is_closed


def test_languages_and_tasks_are_reported_one_by_one(dg_lsp, data, model):
    rows = [json.loads(line) for line in Path(data).read_text().splitlines()]
    rows[0]["language"], rows[1]["path"] = "go", "src/main.go"
    Path("mixed.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tree = dg_lsp("bench", "infill", "mixed.jsonl", "--json").json
    assert tree["exact_match"] == 0.8, "the span has two lines, and the cursor is at the end of one"
    assert {language: counts["num"] for language, counts in tree["languages"].items()} == {"go": 2, "python": 3}
    assert tree["languages"]["go"]["exact_match_by_kind"] == {"line-end": 1.0, "whole-line": 1.0}
    assert {(row["language"], row["task"]) for row in tree["tasks"]} >= {("go", "all"), ("go", "line-end")}
    out = dg_lsp("bench", "infill", "mixed.jsonl").out.replace("\N{NO-BREAK SPACE}", " ")
    assert "The length was unknown" in out
    assert "| exact match | 100.0 %" in out
    assert "By language and task:" in out
    assert "| go | all | 2 | 100.0 % | 100.0 % | 100.0 % |" in out


def test_execute_announces_itself_and_tests_the_programs(dg_lsp, data, model, bwrap):
    outcome = dg_lsp("bench", "infill", data, "--execute", "--length", "oracle", "--json")
    assert outcome.code == 0
    assert outcome.err == "dg-lsp: --execute runs model-written programs, in a bubblewrap sandbox\n"
    assert (outcome.json["pass_at_1"], outcome.json["length_knowledge"]) == (1.0, "oracle")


@pytest.mark.parametrize("num", [0, 2])
def test_ctrl_c_keeps_the_attempts_and_the_run_is_resumed(dg_lsp, data, model, script, num):
    command = ("bench", "infill", data, "--output", "run.jsonl", "--json")
    model.interrupt_at = num + 1
    outcome = dg_lsp(*command)
    assert (outcome.code, outcome.json["num"], outcome.json["is_complete"]) == (130, num, False)
    assert len(Path("run.jsonl").read_text().splitlines()) == 1 + num
    assert script.denoiser.is_closed
    model.interrupt_at = None
    for num_filled in (5 - num, 0):
        model.filled.clear()
        assert dg_lsp(*command).json["num"] == 5
        assert len(model.filled) == num_filled


def test_a_file_that_was_cut_off_loses_at_most_one_attempt(dg_lsp, data, model):
    command = ("bench", "infill", data, "--output", "run.jsonl", "--json")
    dg_lsp(*command)
    whole = Path("run.jsonl").read_bytes()
    header = whole.index(b"\n") + 1
    for size, num_lost in ((0, 5), (header, 5), (header + 9, 5), (len(whole) - 40, 1), (len(whole) - 1, 1)):
        Path("run.jsonl").write_bytes(whole[:size])
        model.filled.clear()
        assert dg_lsp(*command).json["num"] == 5
        assert len(model.filled) == num_lost
        assert Path("run.jsonl").read_bytes().count(b"\n") == 6


@pytest.mark.parametrize("text", ["notes", "notes\nmore", "{}\n", None], ids=lambda text: text or "other options")
def test_a_file_that_is_no_such_run_is_refused_and_unchanged(dg_lsp, data, model, text):
    path = Path("run.jsonl")
    if text is None:
        dg_lsp("bench", "infill", data, "--output", path, "--length", "oracle")
    else:
        path.write_text(text)
    before = path.read_bytes()
    message = dg_lsp("bench", "infill", data, "--output", path).error(2)
    assert "holds no run" in message and "name another --output" in message and "set --threads" in message
    assert path.read_bytes() == before


def test_wrong_use_is_refused_before_the_model_is_opened(dg_lsp, data, model, script):
    Path("bad.jsonl").write_text('{"task_id": "a"}\n')
    trees = [json.loads(line) for line in Path(data).read_text().splitlines()]
    Path("untested.jsonl").write_text("".join(json.dumps({**tree, "test": None}) + "\n" for tree in trees))
    assert "line 1: no prompt" in dg_lsp("bench", "infill", "bad.jsonl").error(2)
    assert "no such file" in dg_lsp("bench", "infill", "gone.jsonl").error(2)
    assert "no tests" in dg_lsp("bench", "infill", "untested.jsonl", "--execute").error(2)
    assert script.denoiser is None


def test_the_checksum_of_a_checkpoint_is_that_of_all_its_files(tmp_path):
    checksums = []
    for content in ("a", "b"):
        (tmp_path / "model.safetensors").write_text(content)
        checksums.append(bench.checksum(tmp_path))
    assert checksums[0] != checksums[1]
    assert len(checksums[0]) == 64


def test_excluded_files_are_not_typed_by_benchmarks(dg_lsp, script, tmp_path):
    (tmp_path / ".env").write_text("KEY=1\n")
    message = dg_lsp("bench", "replay", tmp_path / ".env").error(2)
    assert "usually contain secrets" in message
    assert "--even-secret" not in message
    assert script.denoiser is None
