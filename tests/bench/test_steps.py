import dataclasses
import json
import time

import pytest

from dg_lsp.backends.scripted import MASK_SPEC, ScriptedDenoiser
from dg_lsp.bench.recompute import compare_recomputed
from dg_lsp.bench.steps import BatchTimes, measure_batches, measure_overhead, measure_steps
from dg_lsp.bench.steps_shares import Shares, measure_shares
from dg_lsp.bench.tables import (
    batch_table,
    comparison_table,
    overhead_line,
    ratio_table,
    share_table,
    step_table,
)
from dg_lsp.canvas.spec import DecoderName
from dg_lsp.cli.steps import measure
from dg_lsp.context.document import Snapshot
from dg_lsp.diffusion import loop
from dg_lsp.engine.engine import Engine
from dg_lsp.engine.request import FillRequest
from dg_lsp.settings import FillSettings, RuntimeSettings, Settings


def test_steps_are_timed_by_canvas_length_and_prompt():
    denoiser = ScriptedDenoiser("x", step_seconds=0.002)
    times = measure_steps(denoiser, 64, [8, 16], rounds=2)
    assert list(times.steps) == [8, 16]
    assert min(times.steps.values()) >= 2
    assert list(times.causal) == [1, 8, 16]
    assert min(times.causal.values()) >= 2
    assert times.one_token_steps == {length: ms / times.causal[1] for length, ms in times.steps.items()}
    # two rounds and one to warm up, each with the whole prompt and its last tokens, all of them really decoded;
    # after 8 tokens 16 more are cropped, and 8 of them come back
    assert denoiser.num_prefilled == 3 * (1 + 64 + 0 + 8 + 0 + 0 + 0)
    assert denoiser.num_steps == 3 * (2 + 3)


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


def test_a_model_without_a_causal_head_has_no_causal_passes():
    denoiser = ScriptedDenoiser("x", spec=dataclasses.replace(MASK_SPEC, has_causal_head=False))
    times = measure_steps(denoiser, 64, [8], rounds=1)
    assert times.causal == times.one_token_steps == {}


def test_a_model_without_canvases_has_causal_passes_alone():
    denoiser = ScriptedDenoiser("x", spec=dataclasses.replace(MASK_SPEC, sampling=None))
    times = measure_steps(denoiser, 64, [8], rounds=1)
    assert times.steps == {}
    assert list(times.causal) == [1, 8, 16]


def test_canvases_are_timed_by_their_number_as_far_as_they_fit():
    spec = dataclasses.replace(MASK_SPEC, canvas_lengths=(8, 16))
    denoiser = ScriptedDenoiser("x", spec=spec, step_seconds=0.002, context_length=64)
    short, long = measure_batches(denoiser, 8, [8, 16], rounds=2)
    assert (short.canvas_length, long.canvas_length) == (8, 16)
    assert list(short.steps) == [1, 2, 4, 8]
    assert list(long.steps) == [1, 2, 4]
    assert min(short.steps.values()) >= 2


class Slow(ScriptedDenoiser):
    """Its forward pass and its reduction take known times; a prefill decodes as well."""

    def decode(self):
        time.sleep(0.004)

    def reduce(self):
        time.sleep(0.002)

    def prefill(self, slot, prompt_ids):
        self.decode()
        return super().prefill(slot, prompt_ids)

    def predict(self, slot, canvases, temperature, rng, _lanes=()):
        self.decode()
        self.reduce()
        return super().predict(slot, canvases, temperature, rng)


def test_the_parts_of_a_step_make_the_step():
    denoiser = Slow("abcdefgh", tokens_per_step=1)
    engine = Engine(denoiser, denoiser.tokenizer, FillSettings(deadline_ms=60_000))
    before = loop.unmask
    request = FillRequest(Snapshot("a", 0, "a = "), 4, decoder=DecoderName.DIFFUSION)
    decode, reduction = ((denoiser, "decode"),), ((denoiser, "reduce"),)
    shares = measure_shares(engine, denoiser, [request] * 2, decode=decode, reduction=reduction)
    assert shares.num_steps == denoiser.num_steps == 18
    assert shares.decode >= 4
    assert shares.reduction >= 2
    assert shares.self_conditioning == 0
    assert shares.sampling > 0
    assert shares.python > 0
    assert shares.total == pytest.approx(sum(shares.parts().values()))
    # nothing is left behind
    assert loop.unmask is before
    assert not {"decode", "reduce", "predict"} & set(vars(denoiser))


def test_tables_have_a_cell_for_everything():
    denoiser = ScriptedDenoiser("x")
    times = {64: measure_steps(denoiser, 64, [8, 16], rounds=1)}
    assert {row.count("|") for row in step_table(times)} == {9}
    assert {row.count("|") for row in ratio_table(times)} == {4}
    assert {row.count("|") for row in batch_table([BatchTimes(8, {1: 2.0, 2: 3.0})])} == {6}
    assert list(batch_table([BatchTimes(8, {1: 2.0, 2: 3.0})]))[-1] == (
        "| 8 | 2.00 (1.00 each) | 3.00 (0.75 each) | - | - |"
    )
    assert list(share_table(Shares(4, 6.0, 0.0, 2.0, 1.0, 1.0)))[2:4] == [
        "| decode | 6.000 | 60.0% |",
        "| self-conditioning | 0.000 | 0.0% |",
    ]
    comparison = compare_recomputed(denoiser, ScriptedDenoiser("x"), 16, [8], rounds=1)
    assert {row.count("|") for row in comparison_table(comparison)} == {5}
    engine = Engine(denoiser, denoiser.tokenizer, FillSettings())
    assert "%" in overhead_line(measure_overhead(engine, [FillRequest(Snapshot("a", 0, "a = "), 4)]))


def test_the_whole_measurement_of_the_bundled_model():
    report = measure(Settings(runtime=RuntimeSettings(threads=1, gpu_layers=0)), rounds=1)
    tree = json.loads(json.dumps(report.json()))
    assert tree["model"] == "dg-mini"
    assert tree["overhead"]["num_steps"] > 0
    longest = max(tree["times"], key=int)
    assert list(tree["times"][longest]["causal"]) == ["1", "8", "16"]
    assert all(ratio > 0 for ratio in tree["times"][longest]["one_token_steps"].values())
    assert [list(one["steps"]) for one in tree["batches"]][-1] == ["1", "2", "4"]
    assert min(tree["shares"]["decode"], tree["shares"]["reduction"]) > 0
    assert tree["shares"]["self_conditioning"] == 0
    assert [one["canvas_length"] for one in tree["comparisons"]] == [16, 32, 64]
    assert all(one["recomputed"] > one["cached"] for one in tree["comparisons"])
    assert any("recomputed" in line for line in report.lines())
