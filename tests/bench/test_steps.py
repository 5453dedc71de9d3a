import json

import pytest

from dg_lsp.backends.scripted import ScriptedDenoiser
from dg_lsp.bench.recompute import compare_recomputed
from dg_lsp.bench.steps import measure_overhead, measure_steps
from dg_lsp.bench.tables import comparison_table, overhead_line, step_table
from dg_lsp.cli.steps import measure
from dg_lsp.context.snapshot import Snapshot
from dg_lsp.engine.engine import Engine
from dg_lsp.engine.request import FillRequest
from dg_lsp.settings import FillSettings, RuntimeSettings, Settings


def test_steps_are_timed_by_canvas_length_and_prompt():
    denoiser = ScriptedDenoiser("x", step_seconds=0.002)
    times = measure_steps(denoiser, 64, [8, 16], rounds=2)
    assert list(times.steps) == [8, 16]
    assert min(times.steps.values()) >= 2
    # two rounds and one to warm up, each with the whole prompt and its last tokens, all of them really decoded
    assert denoiser.num_prefilled == 3 * (1 + 64 + 0 + 8)
    assert denoiser.num_steps == 3 * 2


def test_the_overhead_is_what_is_left_beside_the_backend():
    denoiser = ScriptedDenoiser("abcdefgh", tokens_per_step=1, step_seconds=0.002)
    engine = Engine(denoiser, denoiser.tokenizer, FillSettings())
    overhead = measure_overhead(engine, [FillRequest(Snapshot("a", 0, "a = "), 4)] * 2)
    assert overhead.num_steps == denoiser.num_steps == 18
    assert overhead.decode >= 2
    assert 0 < overhead.engine < overhead.decode
    assert overhead.share == pytest.approx(overhead.engine / overhead.decode)


def test_both_sides_of_a_comparison_are_measured():
    fast, slow = ScriptedDenoiser("x"), ScriptedDenoiser("x", step_seconds=0.02)
    (one,) = compare_recomputed(fast, slow, 32, [16], rounds=2)
    assert one.canvas_length == 16
    assert one.recomputed >= 20
    assert one.ratio > 1
    assert fast.num_steps == slow.num_steps == 3


def test_tables_have_a_cell_for_everything():
    denoiser = ScriptedDenoiser("x")
    rows = list(step_table({64: measure_steps(denoiser, 64, [8, 16], rounds=1)}))
    assert {row.count("|") for row in rows} == {6}
    comparison = compare_recomputed(denoiser, ScriptedDenoiser("x"), 16, [8], rounds=1)
    assert {row.count("|") for row in comparison_table(comparison)} == {5}
    engine = Engine(denoiser, denoiser.tokenizer, FillSettings())
    assert "%" in overhead_line(measure_overhead(engine, [FillRequest(Snapshot("a", 0, "a = "), 4)]))


def test_the_whole_measurement_of_the_bundled_model():
    report = measure(Settings(runtime=RuntimeSettings(threads=1, gpu_layers=0)), rounds=1)
    tree = json.loads(json.dumps(report.json()))
    assert tree["model"] == "dg-mini"
    assert tree["overhead"]["num_steps"] > 0
    assert [one["canvas_length"] for one in tree["comparisons"]] == [16, 32, 64]
    assert all(one["recomputed"] > one["cached"] for one in tree["comparisons"])
    assert any("recomputed" in line for line in report.lines())
