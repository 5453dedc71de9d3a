import numpy as np
import pytest

from dg_lsp.backends.scripted import MASK_ID, MASK_SPEC, MIDDLE_ID, PREFIX_ID, SUFFIX_ID, ByteTokenizer
from dg_lsp.canvas.fim import fim_prompt, open_canvas
from dg_lsp.canvas.layout import Canvas, token_ids
from dg_lsp.context.window import Prompt
from dg_lsp.errors import ModelUnsupportedError

TOKENIZER = ByteTokenizer()


def prompt_text(prefix, suffix, max_tokens=100):
    ids = fim_prompt(Prompt(prefix, suffix), TOKENIZER, MASK_SPEC, max_tokens).tolist()
    middle = ids.index(PREFIX_ID)
    assert ids[0] == SUFFIX_ID
    assert ids[-1] == MIDDLE_ID
    assert len(ids) <= max_tokens
    return TOKENIZER.decode(token_ids(ids[middle:])).decode(), TOKENIZER.decode(token_ids(ids[:middle])).decode()


def test_suffix_comes_first_so_that_typing_changes_the_end_only():
    assert prompt_text("def f(", "):\n    pass\n") == ("def f(", "):\n    pass\n")


def test_an_empty_buffer_is_three_sentinels():
    assert fim_prompt(Prompt("", ""), TOKENIZER, MASK_SPEC, 100).tolist() == [SUFFIX_ID, PREFIX_ID, MIDDLE_ID]


def test_a_long_suffix_keeps_its_beginning_and_leaves_the_prefix_its_room():
    prefix, suffix = prompt_text("p" * 60, "abcdef" * 100, max_tokens=103)
    assert suffix == ("abcdef" * 100)[:30]
    assert prefix == "p" * 60


def test_a_long_prefix_keeps_its_end():
    prefix, _ = prompt_text("".join(map(chr, range(48, 122))), "", max_tokens=43)
    assert prefix.endswith("wxy")
    assert len(prefix) > 40 * 7 / 8 - 1


def test_typing_moves_the_start_of_a_long_prefix_only_now_and_then():
    typed = [prompt_text("x" * 500 + "y" * n, "", max_tokens=103)[0] for n in range(100)]
    starts = [500 + n - len(prefix) for n, prefix in enumerate(typed)]
    assert len(set(starts)) <= 100 / 12 + 2


def test_a_model_without_sentinels_is_refused():
    spec = type(MASK_SPEC)("bare", 300, MASK_SPEC.sampling, (1,))
    with pytest.raises(ModelUnsupportedError, match="bare"):
        fim_prompt(Prompt("", ""), TOKENIZER, spec, 100)


def test_an_open_canvas_is_all_masks():
    plan = open_canvas(token_ids([3, 2, 4]), MASK_SPEC, 8, np.random.default_rng(0))
    assert plan.prompt_ids.tolist() == [3, 2, 4]
    assert plan.canvas_ids.tolist() == [MASK_ID] * 8
    assert not plan.frozen.any()


def test_a_plan_whose_flags_do_not_fit_is_refused():
    with pytest.raises(ValueError, match="frozen"):
        Canvas(token_ids([]), token_ids([1, 2]), np.zeros(3, bool))
