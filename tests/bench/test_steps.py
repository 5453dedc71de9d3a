import dataclasses
import json
import time

import pytest

from dg_lsp.backends.scripted import MASK_SPEC, ScriptedDenoiser
from dg_lsp.bench.steps import (
    measure_batches,
    measure_cache_gain,
    measure_model,
    measure_overhead,
    measure_parts,
    measure_steps,
)
from dg_lsp.cli import loading
from dg_lsp.context.document import Snapshot
from dg_lsp.diffusion import loop
from dg_lsp.engine.engine import LocalEngine
from dg_lsp.engine.request import DecoderName, FillRequest
from dg_lsp.settings import CompletionSettings, ModelSettings, Settings


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


def test_the_overhead_is_the_time_outside_the_backend():
    denoiser = ScriptedDenoiser("abcdefgh", tokens_per_step=1, step_seconds=0.002)
    engine = LocalEngine(denoiser, denoiser.tokenizer, CompletionSettings())
    overhead = measure_overhead(engine, [FillRequest(Snapshot("a", 0, "a = "), 4)] * 2)
    assert denoiser.num_steps == 18
    assert overhead["decode"] >= 2
    assert 0 < overhead["engine"] < overhead["decode"]
    assert overhead["share"] == pytest.approx(overhead["engine"] / overhead["decode"])


def test_the_cache_gain_compares_two_denoisers():
    fast, slow = ScriptedDenoiser("x"), ScriptedDenoiser("x", step_seconds=0.02)
    gains = measure_cache_gain(fast, slow, 32, [16], rounds=2)
    assert list(gains) == [16]
    assert gains[16]["recomputed"] >= 20
    assert gains[16]["cached"] < gains[16]["recomputed"]
    assert fast.num_steps == slow.num_steps == 3


def test_batches_are_measured_as_far_as_they_fit():
    spec = dataclasses.replace(MASK_SPEC, canvas_lengths=(8, 16))
    denoiser = ScriptedDenoiser("x", spec=spec, step_seconds=0.002, context_length=64)
    batches = measure_batches(denoiser, 8, [8, 16], rounds=2)
    assert {length: list(steps) for length, steps in batches.items()} == {8: [1, 2, 4, 8], 16: [1, 2, 4]}
    assert min(batches[8].values()) >= 2


class Slow(ScriptedDenoiser):
    """Its forward pass and its reduction take known times; a prefill decodes, too."""

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


def test_a_step_is_divided_into_parts():
    denoiser = Slow("abcdefgh", tokens_per_step=1)
    engine = LocalEngine(denoiser, denoiser.tokenizer, CompletionSettings(deadline_ms=60_000))
    before = loop.unmask
    request = FillRequest(Snapshot("a", 0, "a = "), 4, decoder=DecoderName.DIFFUSION)
    functions = {"decode": ((denoiser, "decode"),), "reduction": ((denoiser, "reduce"),)}
    parts = measure_parts(engine, denoiser, [request] * 2, functions)
    assert denoiser.num_steps == 18
    assert parts["decode"] >= 4
    assert parts["reduction"] >= 2
    assert parts["self_conditioning"] == 0
    assert parts["sampling"] > 0
    assert parts["python"] > 0
    # the functions are restored
    assert loop.unmask is before
    assert not {"decode", "reduce", "predict"} & set(vars(denoiser))


def test_the_bundled_model_is_measured():
    settings = Settings(model=ModelSettings(threads=1, gpu_layers=0))
    model = loading.load_model(settings)
    report = measure_model(loading.open_denoiser(model, settings), settings, model.weights.metadata, rounds=1)
    tree = json.loads(json.dumps(report.json()))
    assert (tree["model"], tree["threads"]) == ("dg-mini", 1)
    assert tree["overhead"]["engine"] > 0
    longest = max(tree["times"], key=int)
    assert list(tree["times"][longest]["causal"]) == ["1", "8", "16"]
    assert all(ratio > 0 for ratio in tree["times"][longest]["one_token_steps"].values())
    assert list(list(tree["batches"].values())[-1]) == ["1", "2", "4"]
    assert min(tree["parts"]["decode"], tree["parts"]["reduction"]) > 0
    assert tree["parts"]["self_conditioning"] == 0
    assert list(tree["cache_gains"]) == ["16", "32", "64"]
    assert all(one["recomputed"] > one["cached"] for one in tree["cache_gains"].values())
    tables = list(report.tables())
    assert len(tables) == 6
    assert all({len(row) for row in table.groups[""]} == {len(table.columns)} for table in tables)
