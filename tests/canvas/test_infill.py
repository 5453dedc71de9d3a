from dataclasses import replace

import pytest
from scripted import MASK_SPEC, ByteTokenizer

from dg_lsp.canvas.prompt_format import layout_of
from dg_lsp.canvas.spec import PromptFormat
from dg_lsp.context.window import Prompt

TOKENIZER = ByteTokenizer()
SPEC = replace(MASK_SPEC, fim=None, prompt_format=PromptFormat.INFILL, canvas_lengths=(16, 32, 64))
START = replace(SPEC, start_ids=(1,))


def laid_out(prefix, suffix):
    """Prompt, head and tail as text."""
    layout = layout_of(Prompt(prefix, suffix), TOKENIZER, SPEC, 100)
    return tuple(TOKENIZER.decode(ids).decode() for ids in (layout.prompt_ids, layout.head_ids, layout.tail_ids))


def test_the_end_of_the_prefix_is_in_the_canvas_and_the_rest_in_the_prompt():
    assert laid_out("def f(x):\n    return ", "\n\nf(1)\n") == ("def f(x):\n   ", " return ", "\n\nf(1)\n")


def test_the_start_token_precedes_an_empty_buffer():
    layout = layout_of(Prompt("", "x"), TOKENIZER, START, 100)
    assert layout.prompt_ids.tolist() == [1]
    assert TOKENIZER.decode(layout.head_ids) == b"\n"


@pytest.mark.parametrize(("prefix", "prompt", "head"), [("", "\n", ""), ("a", "a", ""), ("abc", "a", "bc")])
def test_a_prompt_is_never_empty(prefix, prompt, head):
    assert laid_out(prefix, "x")[:2] == (prompt, head)
