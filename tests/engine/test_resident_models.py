"""Two models in one process: which of them serves a request, and turns on the processor that they share."""

from contextlib import ExitStack, closing
from dataclasses import replace

import pytest
from chatty import chatty
from gates import LONG, TIMEOUT, Gate, ask, is_idle, wait_until
from scripted import UNIFORM_SPEC, ScriptedDenoiser

from dg_lsp.canvas.chat import Role, Turn
from dg_lsp.context.document import Snapshot
from dg_lsp.context.gaps import Gap
from dg_lsp.engine.engine import LocalEngine
from dg_lsp.engine.request import ChatRequest, RewriteRequest
from dg_lsp.engine.scheduler import ResidentModels, Scheduler, SharedDevice
from dg_lsp.postprocess.validate import Reason
from dg_lsp.settings import parse_settings

TEXT = "a = old\n"
GAP = Gap(4, 7, "")
PAIR = parse_settings({"model": {"name": "small"}, "rewrite": {"model": "large"}})


def rewrite(**options):
    return RewriteRequest(Snapshot("file:///b.py", TEXT), 4, 7, **options)


def chat(**options):
    return ChatRequest((Turn(Role.USER, "hi"),), subject="", **options)


class WatchedDevice(SharedDevice):
    num_waits = 0

    def wait(self, priority):
        is_outranked = super().wait(priority)
        self.num_waits += is_outranked
        return is_outranked


@pytest.fixture
def device():
    return WatchedDevice()


@pytest.fixture
def open_models(device):
    """`open_models(small=..., large=...)` -> the pair over these denoisers, or errors."""

    def make(settings=PAIR, **denoisers):
        opened = []

        def open_engine(own):
            denoiser = denoisers[own.model.name]
            opened.append(own.model.name)
            if isinstance(denoiser, Exception):
                raise denoiser
            return LocalEngine(denoiser, denoiser.tokenizer, LONG)

        models = ResidentModels(lambda own: Scheduler(open_engine, own, device), settings)
        stack.enter_context(closing(models))
        for scheduler in models.schedulers:
            wait_until(scheduler.ready.done)
        return models, opened

    with ExitStack() as stack:
        yield make


def test_a_second_model_is_loaded_only_where_another_one_is_named(open_models):
    for rewrites in ("", "small"):
        settings = parse_settings({"rewrite": {"model": rewrites}}, PAIR)
        models, opened = open_models(settings, small=ScriptedDenoiser("x"))
        assert models.rewrite is models.completion
        assert opened == ["small"]
    models, opened = open_models(small=ScriptedDenoiser("x"), large=ScriptedDenoiser("y"))
    assert sorted(opened) == ["large", "small"]
    assert len(models.schedulers) == 2


@pytest.mark.parametrize(
    ("submitted", "of_pair", "of_causal_rewrites"),
    [
        pytest.param(ask(), "completion", "completion", id="a completion"),
        pytest.param(chat(text="raw"), "completion", "completion", id="a text that is continued"),
        pytest.param(rewrite(gaps=(GAP,)), "completion", "completion", id="gaps"),
        pytest.param(rewrite(), "rewrite", "rewrite", id="a rewrite"),
        pytest.param(rewrite(instruction="double it"), "rewrite", "rewrite", id="an instruction"),
        pytest.param(chat(), "rewrite", "rewrite", id="a chat"),
        pytest.param(rewrite(strength=0.5), "rewrite", "completion", id="a part is kept"),
        pytest.param(rewrite(strength=0.5, instruction="double it"), "rewrite", "rewrite", id="an instructed part"),
    ],
)
def test_the_model_depends_on_the_request_and_on_the_canvas_of_the_model_of_rewrites(
    open_models, submitted, of_pair, of_causal_rewrites
):
    models, _ = open_models(small=ScriptedDenoiser("small"), large=chatty("large"))
    assert models.scheduler_for(submitted) is getattr(models, of_pair)
    causal = ScriptedDenoiser("x", spec=replace(UNIFORM_SPEC, sampling=None, canvas_lengths=()))
    models, _ = open_models(small=ScriptedDenoiser("x", spec=UNIFORM_SPEC), large=causal)
    assert models.scheduler_for(submitted) is getattr(models, of_causal_rewrites)


def test_typing_pauses_a_rewrite_of_the_other_model(open_models, device):
    small, large = Gate("typed"), ScriptedDenoiser("new", tokens_per_step=1)
    models, _ = open_models(small=small, large=large)
    typed = models.submit(ask())
    assert small.is_inside.wait(TIMEOUT)
    rewritten = models.submit(rewrite())
    wait_until(lambda: device.num_waits >= 2)
    assert large.num_steps == 0
    # what is typed for the paused model does not wait: it is as urgent
    assert models.rewrite.submit(ask("file:///c.py")).result(TIMEOUT).text == "new"
    small.go_on.set()
    assert typed.result(TIMEOUT).text == "typed"
    assert rewritten.result(TIMEOUT).text == "new"


def test_a_paused_rewrite_ends_at_its_deadline_and_when_it_is_cancelled(open_models, device):
    small, large = Gate("typed"), ScriptedDenoiser("new", tokens_per_step=1)
    models, _ = open_models(small=small, large=large)
    typed = models.submit(ask())
    assert small.is_inside.wait(TIMEOUT)
    assert models.submit(rewrite(deadline_ms=1)).result(TIMEOUT).reason is Reason.UNFINISHED
    cancelled = models.submit(rewrite())
    num_waits = device.num_waits
    wait_until(lambda: device.num_waits > num_waits)
    num_steps = large.num_steps
    cancelled.cancel()
    wait_until(lambda: is_idle(models.rewrite))
    assert large.num_steps == num_steps
    small.go_on.set()
    assert typed.result(TIMEOUT).text == "typed"
