"""Fills that cost no pass: the rest of an earlier one, and the one that follows if it is accepted."""

import itertools
import threading
from dataclasses import replace

import attrs
import pytest
from gates import LONG, TIMEOUT, Gate, Slow, ask, is_idle, wait_until
from scripted import MASK_SPEC, ScriptedDenoiser

from dg_lsp.canvas.spec import FimOrder, PromptFormat
from dg_lsp.context.document import Snapshot
from dg_lsp.context.window import Snippet, Snippets, SnippetSource
from dg_lsp.engine.request import FillRequest, Priority
from dg_lsp.postprocess.validate import Reason
from dg_lsp.settings import CompletionSettings

SPECULATING = CompletionSettings(deadline_ms=60_000)
PREFIX_ONLY = replace(MASK_SPEC, prompt_format=PromptFormat.PREFIX)


def script(prefix, _suffix):
    return {"a = ": "one", "a = one": "two"}.get(prefix, "")


def test_cached_fill_cancels_the_older_request(scheduler_of):
    denoiser = Gate("alpha", tokens_per_step=8)
    scheduler = scheduler_of(denoiser)
    denoiser.go_on.set()
    scheduler.submit(ask(text="a = ")).result(TIMEOUT)
    denoiser.go_on.clear()
    older = scheduler.submit(ask(text="a = z"))
    assert scheduler.submit(ask(text="a = al")).result(TIMEOUT).text == "pha"
    assert older.cancelled()
    denoiser.go_on.set()


def test_a_fill_of_low_confidence_stays_hidden_while_it_is_typed_and_is_not_computed_again(scheduler_of):
    denoiser = ScriptedDenoiser("alpha")
    scheduler = scheduler_of(denoiser, attrs.evolve(SPECULATING, min_confidence=0.999))
    first = scheduler.submit(ask()).result(TIMEOUT)
    num_steps = denoiser.num_steps
    typed = scheduler.submit(ask(text="a = al")).result(TIMEOUT)
    for fill in (first, typed):
        assert (fill.candidates, fill.rejections[0].reason) == ((), Reason.LOW_CONFIDENCE)
    assert denoiser.num_steps == num_steps
    invoked = scheduler.submit(ask(text="a = al", priority=Priority.INVOKED)).result(TIMEOUT)
    assert invoked.text and not invoked.is_cached  # a requested completion is checked more strictly


@pytest.mark.parametrize(("speculate", "is_followed"), [(True, True), (False, True), (True, False)])
def test_next_fill_is_computed_while_the_user_reads_if_settings_and_request_allow_it(
    scheduler_of, speculate, is_followed
):
    denoiser, settings = ScriptedDenoiser(script), attrs.evolve(SPECULATING, speculate=speculate)
    scheduler = scheduler_of(denoiser, settings)
    first = scheduler.submit(ask(max_lines=1, is_followed=is_followed)).result(TIMEOUT)
    wait_until(lambda: is_idle(scheduler))
    is_computed = speculate and is_followed
    assert (denoiser.num_steps > first.steps) is is_computed
    assert scheduler.model_time.speculative > 0
    second = scheduler.submit(ask(text="a = " + first.text, max_lines=1)).result(TIMEOUT)
    assert (second.text, second.is_cached) == ("two", is_computed)


class HeldSpeculation(Gate):
    """Waits only in what follows the first fill."""

    def prefill(self, slot, prompt_ids, *most):
        self.is_held = self._parts(prompt_ids)[0] == "a = one"
        return super().prefill(slot, prompt_ids, *most)

    def predict(self, *args, **kwargs):
        return super().predict(*args, **kwargs) if self.is_held else ScriptedDenoiser.predict(self, *args, **kwargs)


@pytest.mark.parametrize("uri", ["file:///a.py", "file:///b.py"])
def test_any_request_ends_the_speculation(scheduler_of, uri):
    denoiser = HeldSpeculation(script, tokens_per_step=1)
    scheduler = scheduler_of(denoiser, SPECULATING)
    first = scheduler.submit(ask(max_lines=1)).result(TIMEOUT)
    assert denoiser.is_inside.wait(TIMEOUT)
    unrelated = scheduler.submit(ask(uri, text="a = x", max_lines=1))
    accepted = scheduler.submit(ask(text="a = " + first.text, max_lines=1))
    assert unrelated.cancelled() is (uri == "file:///a.py")
    denoiser.go_on.set()
    assert accepted.result(TIMEOUT).text == "two"
    assert denoiser.num_steps >= first.steps + 1 + len("two") + 1


class Drifting(ScriptedDenoiser):
    """Its first slot is exact after some passes of a refresh; each waits for `go_on`."""

    def __init__(self, fill, num_passes):
        super().__init__(fill)
        self.num_passes = num_passes
        self.drifts = []  # at each step of a fill
        self.is_inside, self.go_on = threading.Event(), threading.Event()

    def refresh(self, slot):
        if slot or not self.num_passes:
            return 0
        self.is_inside.set()
        assert self.go_on.wait(TIMEOUT)
        self.num_passes -= 1
        return 16

    def predict(self, *args, **kwargs):
        self.drifts.append(self.num_passes)
        return super().predict(*args, **kwargs)


@pytest.mark.parametrize("settings", [LONG, SPECULATING])
def test_idle_time_makes_approximate_prompts_exact_and_any_request_ends_that_within_one_pass(scheduler_of, settings):
    denoiser = Drifting(script, 5)
    scheduler = scheduler_of(denoiser, settings)
    scheduler.submit(ask(max_lines=1)).result(TIMEOUT)
    assert denoiser.is_inside.wait(TIMEOUT)
    unrelated = scheduler.submit(ask("file:///b.py", max_lines=1))
    denoiser.go_on.set()
    unrelated.result(TIMEOUT)
    assert (denoiser.drifts[0], denoiser.drifts[-1]) == (5, 4)
    wait_until(lambda: is_idle(scheduler))
    assert denoiser.num_passes == 0


@pytest.mark.parametrize("speculate", [True, False])
def test_a_prompt_is_decoded_in_idle_time_if_the_settings_allow_it_and_not_again(scheduler_of, speculate):
    denoiser = ScriptedDenoiser("alpha", spec=PREFIX_ONLY)
    scheduler = scheduler_of(denoiser, attrs.evolve(SPECULATING, speculate=speculate))
    text = "b = 1\n" * 40
    scheduler.warm_up(ask(text=text))
    wait_until(lambda: is_idle(scheduler))
    assert (denoiser.num_prefilled > 0) is speculate
    for opened in (text, "b = 1\n" * 7) if speculate else ():
        result = scheduler.submit(ask(text=opened)).result(TIMEOUT)
        assert result.prompt_tokens - result.cached_tokens <= 1


def test_a_request_ends_a_warm_up_after_one_short_pass(scheduler_of):
    denoiser = Slow(num_free=0, spec=PREFIX_ONLY)
    scheduler = scheduler_of(denoiser, SPECULATING)
    scheduler.warm_up(ask(text="b = 1\n" * 80))
    assert denoiser.is_waiting.wait(TIMEOUT)
    future = scheduler.submit(ask(text="a = "))
    denoiser.allowed.release(1000)
    assert future.result(TIMEOUT).text == "alpha"
    wait_until(lambda: is_idle(scheduler))
    assert denoiser.num_prefilled < 120


def test_a_warm_up_does_not_disturb_a_request(scheduler_of):
    denoiser = Gate("alpha")
    scheduler = scheduler_of(denoiser, SPECULATING)
    future = scheduler.submit(ask(text="a = "))
    scheduler.warm_up(ask(text="b = 1\n"))
    denoiser.go_on.set()
    assert future.result(TIMEOUT).text == "alpha"


CODE = "".join(f"value_{number} = {number}\n" for number in range(90))
NOTES = [Snippets((Snippet(SnippetSource.EDITS, f"{name}.py", f"{name} = 1\n" * 4),)) for name in ("one", "two")]


class Blocks(ScriptedDenoiser):
    """Counts the whole blocks of 32 tokens in its cache."""

    @property
    def footprint(self):
        num_whole = sum(len(ids) // 32 * 32 for ids, _ in list(self._slots.values()))
        return replace(super().footprint, cache_used=num_whole)


OF_BLOCKS = replace(
    MASK_SPEC,
    sampling=replace(MASK_SPEC.sampling, block_length=32),
    canvas_lengths=(32,),
    has_causal_head=False,
)


@pytest.mark.parametrize("format_", [PromptFormat.FIM, PromptFormat.PREFIX])
@pytest.mark.parametrize(
    ("model", "spec", "num_slots", "clients", "num_keys"),
    [
        pytest.param(ScriptedDenoiser, MASK_SPEC, 4, "a", 60, id="four slots"),
        pytest.param(ScriptedDenoiser, MASK_SPEC, 2, "a", 60, id="two slots"),
        pytest.param(ScriptedDenoiser, MASK_SPEC, 4, "ab", 60, id="two clients, two slots for each"),
        pytest.param(ScriptedDenoiser, MASK_SPEC, 4, "abcd", 16, id="four clients, no slot for prompts ahead"),
        pytest.param(Blocks, OF_BLOCKS, 4, "a", 60, id="blocks"),
    ],
)
def test_a_typed_character_decodes_few_tokens_also_where_the_start_of_the_prompt_moves(
    scheduler_of, format_, model, spec, num_slots, clients, num_keys
):
    fim = replace(MASK_SPEC.fim, order=FimOrder.SUFFIX_FIRST)
    spec = replace(spec, max_prompt_tokens=320, fim=fim, prompt_format=format_)
    scheduler = scheduler_of(model("", spec=spec, num_slots=num_slots), SPECULATING)
    decoded = []
    for end, client in itertools.product(range(900, 900 + num_keys), clients):
        request = FillRequest(Snapshot("file:///a.py", CODE[:end] + CODE[960:]), end, client=client)
        result = scheduler.submit(request).result(TIMEOUT)
        wait_until(lambda: is_idle(scheduler))
        decoded.append(result.prompt_tokens - result.cached_tokens)
    assert max(decoded[len(clients) :]) <= 16 < decoded[0]


def test_other_snippets_are_decoded_before_they_take_their_place(scheduler_of):
    scheduler = scheduler_of(ScriptedDenoiser("", spec=PREFIX_ONLY), SPECULATING)
    scheduler.submit(ask(text=CODE[:400], snippets=replace(NOTES[0], following=NOTES[1]))).result(TIMEOUT)
    wait_until(lambda: is_idle(scheduler))
    result = scheduler.submit(ask(text=CODE[:400], snippets=NOTES[1])).result(TIMEOUT)
    assert result.prompt_tokens - result.cached_tokens <= 16
