import json
import os
import signal
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from dg_training import train
from dg_training.export import ExportMetadata, write_model
from dg_training.network import DiffusionNetwork
from dg_training.store import write_texts
from dg_training.train import OptimizerConfig, Trainer, learning_rate

from .conftest import corpus_files


@pytest.fixture
def make_trainer(toy, work_folder, monkeypatch):
    monkeypatch.setattr(train, "REPORT_STEPS", 1)
    monkeypatch.setattr(train, "VALIDATION_TOKENS", 1024)
    return lambda **changes: Trainer(work_folder, replace(toy.config, **changes))


def test_the_learning_rate_warms_up_stays_and_falls_to_zero():
    config = OptimizerConfig(learning_rate=2.0, warmup_steps=10, decay_from=0.6)
    rates = [learning_rate(config, 0, 0.0), *(learning_rate(config, 500, at) for at in (0.3, 0.6, 0.8, 1.0, 1.1))]
    assert rates == pytest.approx([0.2, 2.0, 2.0, 1.0, 0.0, 0.0])


def test_a_resumed_run_equals_one_without_a_break(make_trainer):
    whole, first, second = make_trainer(), make_trainer(), make_trainer()
    whole.run(lambda _: None, max_steps=7)
    first.run(lambda _: None, max_steps=3)
    second.resume()
    progress = second.run(lambda _: None, max_steps=4)
    assert (progress.step, progress.tokens) == (whole.progress.step, whole.progress.tokens) == (7, 7 * 2 * 256)
    for name in ("network", "average"):
        for a, b in zip(getattr(whole, name).parameters(), getattr(second, name).parameters(), strict=True):
            assert (a - b).norm() < 0.02 * a.norm()  # a checkpoint holds bfloat16


def test_training_lowers_the_losses_and_reports_them(make_trainer, toy, work_folder):
    text = "\n".join("\n".join(toy.texts).split("\n")[:200]) + "\n"
    (work_folder / "train.jsonl.xz").unlink()
    write_texts(work_folder / "train.jsonl.xz", corpus_files([text]))
    shown, trainer = [], make_trainer()
    trainer.run(shown.append, max_steps=30)
    *reports, validation = shown
    assert [report["step"] for report in reports] == list(range(1, 31))
    assert sum(r["next_token"] for r in reports[-5:]) < 0.8 * sum(r["next_token"] for r in reports[:5])
    assert {"next_token_middle", "masked_middle", "fill", "masked_middle_full"} <= set(validation)
    json.dumps(validation)
    assert trainer.path.exists()
    assert not list(trainer.path.parent.glob("*.partial"))


@pytest.fixture
def timed_trainer(make_trainer, monkeypatch):
    """A trainer on a clock of its own: the first step takes 70 s, the others 1 s, a validation 20 s."""
    clock, events = SimpleNamespace(now=0.0), []
    trainer = make_trainer(minutes=25.0, checkpoint_minutes=1.5)

    def step(*_):
        clock.now += 1.0 if trainer.progress.step else 70.0

    def validate(*_):
        clock.now += 20.0
        events.append("validation")
        return {}

    monkeypatch.setattr(train, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(train, "validate", validate)
    monkeypatch.setattr(train, "REPORT_STEPS", 1000)
    monkeypatch.setattr(trainer, "step", step)
    monkeypatch.setattr(trainer, "save", lambda: events.append("save"))
    return trainer, clock, events


def test_a_command_ends_in_time_and_saves_before_it_validates(timed_trainer):
    trainer, clock, events = timed_trainer
    trainer.run(lambda _: None, minutes=5, on_save=lambda: events.append("export"))
    assert clock.now == 300
    assert events == ["save", "export", "validation"] * 3


def test_a_command_that_only_compiles_saves_and_does_not_validate(timed_trainer):
    trainer, clock, events = timed_trainer
    trainer.run(lambda _: None, minutes=1)
    assert clock.now == 70
    assert events == ["save"]


def test_a_stopped_command_saves_and_does_not_validate(timed_trainer):
    trainer, clock, events = timed_trainer
    with trainer.stopped_by_signal():
        trainer.run(lambda _: None, minutes=5, on_save=lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert clock.now == 91
    assert events == ["save", "save"]


def test_steps_without_canvases_are_spread_evenly_over_the_first_part(make_trainer):
    trainer, kinds = make_trainer(causal_share=0.5, causal_until=0.6), []
    for step in range(8):
        trainer.progress.step = step
        kinds.append(trainer.is_causal(0.1))
    assert kinds == [False, True] * 4
    assert not trainer.is_causal(0.6)
    assert not make_trainer(causal_share=0.0).is_causal(0.3)


def test_training_starts_from_the_weights_of_a_gguf_file(make_trainer, toy, tmp_path):
    network = DiffusionNetwork(toy.config.network)
    write_model(tmp_path / "a.gguf", network, toy.tokenizer, ExportMetadata("tiny", (8, 16), 128, 4321), "F32")
    trainer = make_trainer()
    trainer.start_from(tmp_path / "a.gguf")
    assert trainer.progress.tokens == 4321
    for ours, theirs in zip(trainer.average.parameters(), network.parameters(), strict=True):
        assert torch.equal(ours, theirs)
