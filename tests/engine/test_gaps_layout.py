from dataclasses import replace

import numpy as np
import pytest

from dg_lsp.backends.scripted import END_ID, MASK_ID, MASK_SPEC, UNIFORM_SPEC, ByteTokenizer
from dg_lsp.canvas.spec import PromptCut, PromptFormat
from dg_lsp.context.window import Prompt
from dg_lsp.engine.gaps import MARK, gaps_layout

TOKENIZER = ByteTokenizer()
PROMPT = Prompt("def f(a):\n    x = ", "\n    return x\n", language="python")
BETWEEN = ("\n    y = ", ", a)\n    z = ")


def layout_in(prompt_format, spec=MASK_SPEC):
    spec = replace(spec, prompt_format=prompt_format, template="gemma4")
    return gaps_layout(PROMPT, BETWEEN, TOKENIZER, spec), spec


def canvas_of(layout, spec):
    """The only canvas with gaps of two tokens."""
    [canvas] = layout.canvases(replace(spec, gap_lengths=(2,)), np.random.default_rng(0))
    return canvas


def shown(canvas):
    """Gaps as `_`, end tokens as `$`, frozen text as it is."""
    ids = np.where(canvas.frozen, canvas.canvas_ids, MASK_ID).tolist()
    return "".join({MASK_ID: "_", END_ID: "$"}.get(token) or TOKENIZER.decode([token]).decode() for token in ids)


@pytest.mark.parametrize("noise_spec", [MASK_SPEC, UNIFORM_SPEC], ids=["masks", "uniform noise"])
@pytest.mark.parametrize(
    ("prompt_format", "canvas"),
    [
        (PromptFormat.FIM, "__\n    y = __, a)\n    z = __$"),
        (PromptFormat.INFILL, "    x = __\n    y = __, a)\n    z = __\n    return x\n"),
    ],
)
def test_text_between_and_around_the_gaps_is_frozen(prompt_format, canvas, noise_spec):
    layout, spec = layout_in(prompt_format, noise_spec)
    assert shown(canvas_of(layout, spec)) == canvas


def test_a_model_that_follows_instructions_answers_with_the_lines_of_the_gaps(monkeypatch):
    monkeypatch.setattr(ByteTokenizer, "special", lambda *_: 4)
    spec = replace(UNIFORM_SPEC, canvas_lengths=(256,))
    layout, spec = layout_in(PromptFormat.INSTRUCT, spec)
    assert shown(canvas_of(layout, spec)) == "```python\n    x = __\n    y = __, a)\n    z = __\n```$"
    question = TOKENIZER.decode(layout.layout.prompt_ids).decode()
    assert f"    x = {MARK}\n    y = {MARK}, a)\n    z = {MARK}\n" in question


@pytest.mark.parametrize("longest", [64, 256])
def test_the_canvases_of_a_pass_have_at_most_as_many_tokens_as_every_runtime_takes(longest):
    prompt = replace(PROMPT, suffix="\n" + "a = 1\n" * 99)
    spec = replace(MASK_SPEC, prompt_format=PromptFormat.INFILL, canvas_lengths=(longest,))
    lengths = [len(canvas.frozen) for canvas in gaps_layout(prompt, BETWEEN, TOKENIZER, spec).canvases(spec, None)]
    assert len(lengths) > 1
    assert max(lengths) <= longest
    assert sum(lengths) <= 256


def test_a_gap_is_found_again_after_its_canvas_was_resized():
    layout, spec = layout_in(PromptFormat.FIM)
    canvas = canvas_of(layout, spec)
    kept = np.delete(np.arange(len(canvas.frozen)), [1, *np.flatnonzero(~canvas.frozen)[2:4]])
    gaps = layout.gaps(canvas.frozen[kept])
    assert [gap.stop - gap.start for gap in gaps] == [1, 0, 2]
    assert gaps[1].start == 1 + len("\n    y = ")


def test_prompt_of_gaps_goes_as_far_as_the_first_gap():
    spec = replace(MASK_SPEC, fim=replace(MASK_SPEC.fim, cut=PromptCut.TOKEN))
    layout = gaps_layout(Prompt("def f():\n    ", "\n"), ("\n",), TOKENIZER, spec).layout
    assert TOKENIZER.decode(layout.before_ids) == b"def f():\n    "
    assert layout.removed == b""
