"""Prompts of causal models: sentinels in the other order, or none; and the way back to the parts."""

from dataclasses import replace

import pytest

from dg_lsp.backends.scripted import MASK_SPEC, MIDDLE_ID, PREFIX_ID, SUFFIX_ID, ByteTokenizer
from dg_lsp.canvas.fim import fim_prompt, prompt_parts
from dg_lsp.canvas.spec import FimOrder, PromptFormat
from dg_lsp.context.window import Prompt

TOKENIZER = ByteTokenizer()
START = 1
PREFIX_FIRST = replace(MASK_SPEC, fim=replace(MASK_SPEC.fim, order=FimOrder.PREFIX_FIRST), start_ids=(START,))
PREFIX_ONLY = replace(MASK_SPEC, fim=None, prompt_format=PromptFormat.PREFIX)


def ids_of(text):
    return TOKENIZER.encode(text).tolist()


def test_the_prefix_first_and_the_start_before_it():
    ids = fim_prompt(Prompt("ab", "yz"), TOKENIZER, PREFIX_FIRST, 100).tolist()
    assert ids == [START, PREFIX_ID, *ids_of("ab"), SUFFIX_ID, *ids_of("yz"), MIDDLE_ID]


def test_without_sentinels_only_the_prefix():
    assert fim_prompt(Prompt("ab", "yz"), TOKENIZER, PREFIX_ONLY, 100).tolist() == ids_of("ab")


def test_an_empty_buffer_is_a_line_end():
    assert fim_prompt(Prompt("", "yz"), TOKENIZER, PREFIX_ONLY, 100).tolist() == ids_of("\n")


@pytest.mark.parametrize("spec", [MASK_SPEC, PREFIX_FIRST, PREFIX_ONLY], ids=["suffix first", "prefix first", "prefix"])
@pytest.mark.parametrize(("prefix", "suffix"), [("ab", "yz"), ("a" * 90, "y" * 90), ("a", "")])
def test_a_prompt_is_short_enough_and_can_be_taken_apart(spec, prefix, suffix):
    ids = fim_prompt(Prompt(prefix, suffix), TOKENIZER, spec, 50)
    assert len(ids) <= 50
    before, after = (TOKENIZER.decode(part).decode() for part in prompt_parts(ids, spec))
    assert prefix.endswith(before)
    assert before
    assert suffix.startswith(after)
    assert bool(after) == bool(suffix and spec.fim)
