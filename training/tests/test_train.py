import os
import signal
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from dg_training import train
from dg_training.network import DiffusionNetwork
from dg_training.train import AdaptOptions, Trainer, learning_rate


@pytest.fixture
def make_trainer(toy, tmp_path, monkeypatch):
    monkeypatch.setattr(train, "REPORT_STEPS", 1)
    monkeypatch.setattr(train, "VALIDATION_TOKENS", 1024)
    options = AdaptOptions(learning_rate=3e-3, minutes=120, checkpoint_minutes=4)

    def make(**changes):
        torch.manual_seed(1)
        return Trainer(tmp_path / "a.pt", toy.rows, replace(options, **changes), DiffusionNetwork(toy.network))

    return make


def test_the_learning_rate_warms_up_stays_and_falls_to_zero():
    rates = [learning_rate(2.0, 1, 0.0), *(learning_rate(2.0, 500, at) for at in (0.3, 0.8, 0.9, 1.0, 1.1))]
    assert rates == pytest.approx([0.2, 2.0, 2.0, 1.0, 0.0, 0.0])


def test_a_resumed_run_continues_weights_optimizer_and_noise(make_trainer):
    first, second = make_trainer(max_steps=3), make_trainer(max_steps=4)
    first.run(lambda _: None)
    second.resume()
    assert second.progress == first.progress
    assert torch.equal(first.generator.get_state(), second.generator.get_state())
    progress = second.run(lambda _: None)
    assert (progress.step, progress.tokens) == (7, 7 * 2 * 256)
    saved = torch.load(first.path, weights_only=True)
    assert all(state["step"] == 7 for state in saved["optimizer"]["state"].values())


def test_the_first_report_of_a_resumed_run_has_the_speed_of_its_own_steps(make_trainer, monkeypatch):
    clock, trainer, reports = SimpleNamespace(now=0.0), make_trainer(max_steps=5), []
    step = trainer.step

    def slow_step(*arguments):
        clock.now += 1.0
        step(*arguments)

    monkeypatch.setattr(train, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(train, "REPORT_STEPS", 4)
    monkeypatch.setattr(trainer, "step", slow_step)
    trainer.progress.step = 3
    trainer.run(reports.append)
    assert [report["tokens_per_second"] for report in reports if "rate" in report] == [512, 512]


@pytest.fixture
def timed_trainer(make_trainer, monkeypatch):
    """A trainer on a clock of its own, with a list of events: a step takes 1 s, a validation 20 s."""
    clock, events = SimpleNamespace(now=0.0), []
    trainer = make_trainer(minutes=25.0, checkpoint_minutes=1.5)

    def step(*_):
        clock.now += 1.0

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


def test_a_command_saves_before_it_validates_and_ends_with_a_checkpoint(timed_trainer):
    trainer, clock, events = timed_trainer
    trainer.run(lambda _: None, minutes=4, on_save=lambda: events.append("export"))
    assert events == ["save", "export", "validation"] * 3
    assert 240 <= clock.now <= 262


def test_a_stopped_command_saves_and_does_not_validate(timed_trainer):
    trainer, clock, events = timed_trainer
    with trainer.stopped_by_signal():
        trainer.run(lambda _: None, minutes=5, on_save=lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert clock.now == 91
    assert events == ["save", "save"]


@pytest.mark.parametrize(("is_causal", "has_canvases"), [(False, [True, False] * 2), (True, [False] * 4)])
def test_half_of_the_steps_have_canvases(make_trainer, monkeypatch, is_causal, has_canvases):
    trainer, steps = make_trainer(is_causal=is_causal, max_steps=4), []
    monkeypatch.setattr(trainer, "step", lambda batch, _: steps.append(batch["start"].shape[1] > 0))
    monkeypatch.setattr(trainer, "_report", lambda *_: None)
    trainer.run(lambda _: None)
    assert steps == has_canvases
