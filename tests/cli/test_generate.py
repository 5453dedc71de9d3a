"""`dg-lsp generate` and `dg-lsp chat`: text, thoughts, canvases, costs, Ctrl-C, and refusals."""

import io
import itertools
import os
import re
import signal
import sys
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from chatty import SPECIALS, chatty
from scripted import END_ID, MASK_SPEC, UNIFORM_SPEC, ScriptedDenoiser

from dg_lsp.engine.decoders import base
from dg_lsp.errors import RemoteError

LONG = "One line.\nAnd a second one, which is longer than the longest canvas, so that it goes on in another.\n"
CAUSAL_SPEC = replace(MASK_SPEC, sampling=None, canvas_lengths=())
SUMMARY = r"scripted(-uniform)?: .*; (\d+) tokens, [\d.]+ tokens/s; ended by end\n"
KEYS = [
    *("text", "thought", "model", "ended_by", "blocks", "canvas_tokens", "tokens", "tokens_per_second"),
    *("canvas_tokens_per_second", "decoder", "canvas_length", "steps", "tokens_per_forward", "prompt_tokens"),
    *("cached_tokens", "timings_ms"),
]


def continued(prefix, _suffix):
    """The long text, after a prompt of four characters."""
    return LONG[len(prefix) - 4 :]


@pytest.mark.parametrize("spec", [MASK_SPEC, UNIFORM_SPEC, CAUSAL_SPEC], ids=["masks", "uniform", "causal"])
def test_a_text_goes_on_over_several_canvases(dg_lsp, script, spec):
    script.fill = continued
    script.spec = spec
    outcome = dg_lsp("generate", "a = ")
    assert (outcome.code, outcome.out) == (0, LONG)
    summary = re.fullmatch(SUMMARY, outcome.err)
    assert int(summary[2]) == len(LONG) + 1
    assert ("autoregressive, 101 steps, " if spec is CAUSAL_SPEC else "diffusion 64, ") in outcome.err
    assert "prompt 4 tokens, 0 cached" in outcome.err


def test_json_is_one_object_with_counted_canvases(dg_lsp, script):
    script.fill = continued
    outcome = dg_lsp("generate", "a = ", "--json", "--max-tokens", "80", "--sampler", "canvas_length=32")
    assert (outcome.code, outcome.err, outcome.out.count("\n")) == (0, "", 1)
    tree = outcome.json
    assert list(tree) == KEYS
    assert (tree["text"], tree["ended_by"], tree["tokens"]) == (LONG[:80], "tokens", 80)
    assert (tree["canvas_length"], tree["blocks"], tree["canvas_tokens"]) == (32, 3, 96)


def test_the_prompt_is_an_argument_or_standard_input(dg_lsp, script, monkeypatch):
    seen = []
    script.fill = lambda prefix, _: seen.append(prefix) or "x"
    monkeypatch.setattr(sys, "stdin", io.StringIO("from a pipe"))
    dg_lsp("generate", "an argument", "-n", "4")
    dg_lsp("generate", "-n", "4")
    assert list(dict.fromkeys(seen)) == ["an argument", "from a pipe"]
    assert "there is no text" in dg_lsp("generate").error(2)


@pytest.mark.parametrize("as_json", [False, True])
def test_ctrl_c_keeps_what_is_there(dg_lsp, script, as_json):
    def answer(prefix, _suffix):
        if len(prefix) > 4:  # the second canvas
            os.kill(os.getpid(), signal.SIGINT)
        return continued(prefix, _suffix)

    script.fill = answer
    before = signal.getsignal(signal.SIGINT)
    outcome = dg_lsp("generate", "a = ", *["--json"] * as_json)
    assert outcome.code == 130
    assert (outcome.json["text"] if as_json else outcome.out.removesuffix("\n")) == LONG[:64]
    assert (outcome.json["ended_by"] if as_json else outcome.err.split()[-1]) == "interrupted"
    assert signal.getsignal(signal.SIGINT) is before


def test_a_deadline_returns_what_is_settled(dg_lsp, script, monkeypatch):
    script.model = denoiser = ScriptedDenoiser(LONG, tokens_per_step=1)
    clock = SimpleNamespace(monotonic=lambda: denoiser.num_steps, perf_counter=float)  # a second for each step
    monkeypatch.setattr(base, "time", clock)
    monkeypatch.setattr("dg_lsp.cli.options.time", clock)
    outcome = dg_lsp("generate", "a = ", "--deadline", "3000", "--json")
    assert (outcome.code, outcome.json["text"], outcome.json["ended_by"]) == (0, LONG[:3], "deadline")


# chat


def test_answers_of_several_messages_see_the_ones_before(dg_lsp, script):
    seen = []

    def answer(prefix, _suffix):
        seen.append(prefix)
        return f"Answer {prefix.count('model')}."

    script.model = chatty(answer)
    outcome = dg_lsp("chat", "--system", "Be brief.", "-m", "hi", "--message", "and?")
    assert outcome.code == 0
    assert len(outcome.out.splitlines()) == 2
    assert outcome.err.count("ended by end") == 2
    assert re.search("Be brief.*hi.*Answer.*and", seen[-1], re.DOTALL)


def test_standard_input_is_one_message(dg_lsp, script, monkeypatch):
    script.model = chatty("Yes.")
    monkeypatch.setattr(sys, "stdin", io.StringIO("Two\nlines?\n"))
    assert dg_lsp("chat").out == "Yes.\n"
    assert "a message is empty" in dg_lsp("chat").error(2)


def test_a_thought_is_printed_beside_the_answer(dg_lsp, script):
    script.model = chatty("<think>\nWhy not?\n</think>\n\nBecause.")
    script.model.tokenizer.special = {**SPECIALS, "<|think|>": END_ID}.get
    outcome = dg_lsp("chat", "-m", "hi", "--sampler", "thinking=true")
    assert outcome.out == "Because.\n"
    assert outcome.err.startswith("Why not?\n")
    tree = dg_lsp("chat", "-m", "hi", "--sampler", "thinking=true", "--json").json
    assert (tree["thought"], tree["text"]) == ("Why not?", "Because.")


def test_a_conversation_on_a_terminal_goes_on_after_a_long_message_and_ends_with_ctrl_d(dg_lsp, script, terminal):
    script.model = chatty("Yes.", context_length=256)
    terminal("x" * 300 + "\n  \nhi\nagain\n")
    outcome = dg_lsp("chat")
    assert (outcome.code, outcome.out) == (0, "Yes.\nYes.\n")
    assert "the conversation has" in outcome.err
    assert "the conversation has" in dg_lsp("chat", "-m", "x" * 300).error(2)


def press_ctrl_c():
    os.kill(os.getpid(), signal.SIGINT)


BUSY = Mock(side_effect=RemoteError("127.0.0.1 is busy (status 429)"))


@pytest.mark.parametrize(
    ("event", "step", "answer", "reported"),
    [
        pytest.param(press_ctrl_c, 4, "Yes,\n", "ended by interrupted", id="Ctrl-C"),
        pytest.param(BUSY, 1, "", "127.0.0.1 is busy", id="failure of the server"),
    ],
)
def test_a_conversation_goes_on_after_an_answer_that_was_cut(dg_lsp, script, terminal, event, step, answer, reported):
    script.model = chatty("Yes, and more than that.", tokens_per_step=1)
    begin, numbers = script.model._begin_pass, itertools.count(1)

    def begin_pass():
        if next(numbers) == step:
            event()
        begin()

    script.model._begin_pass = begin_pass
    terminal("hi\nagain\n")
    outcome = dg_lsp("chat")
    assert (outcome.code, outcome.out) == (0, f"{answer}Yes, and more than that.\n")
    assert reported in outcome.err
    assert outcome.err.count("ended by end") == 1


def test_a_message_without_an_answer_is_no_part_of_the_conversation(dg_lsp, script, terminal):
    prompts = []

    def answer(prefix, _suffix):
        prompts.append(prefix)
        return "Yes." if "again" in prefix else ""

    script.model = chatty(answer)
    terminal("hi\nagain\n")
    assert dg_lsp("chat").out == "\nYes.\n"
    assert "hi" not in prompts[-1]


def test_the_bundled_model_continues_texts_and_refuses_conversations(dg_lsp):
    prompt = "def add(a, b):\n    return "
    tree = dg_lsp("generate", prompt, "-n", "40", "--json", "--decoder", "autoregressive").json
    assert (tree["model"], tree["blocks"], tree["steps"]) == ("dg-mini", 0, tree["tokens"])
    refusal = dg_lsp("chat", "-m", "hi").error(3)
    assert "dg-mini follows no instructions, and dg-lsp generate continues" in refusal
    assert "qwen2.5-coder-0.5b-instruct follows them: fetch it with dg-lsp models pull" in refusal


def test_only_the_terminal_gets_symbols_for_control_characters(dg_lsp, script, monkeypatch):
    script.fill = "a\x1b[2Jb"
    assert dg_lsp("generate", "a = ").out == "a\x1b[2Jb\n"
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda _: True, raising=False)
    assert "\x1b[2J" not in dg_lsp("generate", "a = ").out


def test_terminal_shows_model_device_and_plan(dg_lsp, script, monkeypatch):
    script.spec = UNIFORM_SPEC
    assert "context of" not in dg_lsp("generate", "a = ").err
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    banner = (
        r"dg-lsp: scripted-uniform with 0 MB of weights on the processor: canvases of at most 64 tokens, 48 steps; "
    )
    assert re.match(banner + r"context of [\d,]+ tokens with at most \d+ MB of cache\n", dg_lsp("generate", "a = ").err)
    assert dg_lsp("generate", "a = ", "--json").err == ""
    script.model = chatty("hi")
    assert "context of" in dg_lsp("chat", "-m", "hello").err


def test_end_tokens_can_be_ignored(dg_lsp, script):
    script.model = chatty("hi")
    tree = dg_lsp("chat", "-m", "hello", "--ignore-eos", "-n", "20", "--json").json
    assert (tree["ended_by"], tree["tokens"]) == ("tokens", 20)
