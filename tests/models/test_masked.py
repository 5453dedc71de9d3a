"""What is known of masked diffusion models whose files say nothing, and what their files say after all."""

import pytest

from dg_lsp.canvas.spec import PromptFormat, SpecialTokens, UnmaskOrder
from dg_lsp.errors import ModelUnsupportedError
from dg_lsp.models.metadata import describe

VOCAB = 152_064
SPECIALS = SpecialTokens(control_ids=(151_643, 151_644, 151_645, 151_666, 151_667), end_ids=(151_643, 151_645))


def spec_of(architecture, name="", specials=SPECIALS, vocab_size=VOCAB, **metadata):
    return describe(
        {"general.architecture": architecture, "general.name": name, **metadata}, vocab_size, "file", specials
    )


@pytest.mark.parametrize(
    ("architecture", "name", "mask_id", "is_shifted"),
    [
        ("dream", "Dream v0 Instruct 7B", 151_666, True),
        ("llada", "LLaDA 8B", 126_336, False),
        ("llada-moe", "", 156_895, False),
        ("rnd1", "RND1 Base 0910", 151_669, True),
        ("qwen2", "Open dCoder 0.5B", 151_665, True),
    ],
)
def test_each_family_is_asked_its_own_way(architecture, name, mask_id, is_shifted):
    spec = spec_of(architecture, name, vocab_size=160_000)
    assert spec.sampling.mask_id == mask_id
    assert mask_id in spec.banned_ids
    assert spec.is_shifted is is_shifted
    assert spec.is_bidirectional
    assert not spec.has_causal_head
    assert spec.prompt_format is PromptFormat.INFILL
    assert spec.sampling.order is UnmaskOrder.CONFIDENT
    assert spec.sampling.expand_id is spec.sampling.delete_id is None


def test_a_qwen2_of_another_name_is_a_causal_model():
    assert spec_of("qwen2", "Qwen2.5 Coder 0.5B").sampling is None


def test_a_file_may_have_the_name_that_its_metadata_lacks():
    spec = describe({"general.architecture": "qwen2"}, VOCAB, "open-dcoder-0.5b-q8_0", SPECIALS)
    assert spec.is_bidirectional


def test_dreamon_expands_and_deletes_and_its_deletion_ends_nothing():
    spec = spec_of("dream", "DreamOn v0 7B")
    assert (spec.sampling.expand_id, spec.sampling.delete_id) == (151_667, 151_643)
    assert spec.end_ids == (151_645,)
    assert set(spec.banned_ids) == {151_644, 151_666}
    assert spec.gap_lengths == (16,)


def test_what_the_file_says_wins():
    spec = spec_of("dream", **{"tokenizer.ggml.mask_token_id": "7", "diffusion.shift_logits": "false"})
    assert spec.sampling.mask_id == 7
    assert not spec.is_shifted
    assert spec_of("llada", **{"diffusion.shift_logits": "true"}).is_shifted


def test_special_tokens_but_those_that_end_are_never_said():
    spec = spec_of(
        "dream", specials=SpecialTokens(control_ids=(1, 2, 3), end_ids=(3,), start_ids=(2,)), vocab_size=200_000
    )
    assert spec.banned_ids == (1, 2, 151_666)
    assert spec.end_ids == (3, 151_643, 151_645)
    assert spec.start_ids == (2,)


def test_a_dream_begins_with_its_first_token_even_where_its_tokenizer_adds_none():
    first = {"tokenizer.ggml.bos_token_id": "151665"}
    assert spec_of("dream", **first).start_ids == (151_665,)
    assert spec_of("rnd1", **first).start_ids == ()
    assert spec_of("dream").start_ids == ()


def test_a_vocabulary_without_the_mask_is_refused():
    with pytest.raises(ModelUnsupportedError, match="no mask 126336 in a vocabulary of 1000"):
        spec_of("llada", vocab_size=1000)
    with pytest.raises(ModelUnsupportedError, match="no mask 1000"):
        spec_of("llada", vocab_size=1000, **{"tokenizer.ggml.mask_token_id": "1000"})


@pytest.mark.parametrize(("trained", "most"), [("2048", 1024), ("1000", 744), ("10", 1), ("", 1024)])
def test_a_prompt_leaves_room_for_the_canvas_in_what_was_trained_for(trained, most):
    assert spec_of("dream", **{"dream.context_length": trained}).max_prompt_tokens == most


def test_a_relabelled_file_is_what_it_was():
    spec = spec_of("qwen2", **{"general.relabelled_from": "dream", "qwen2.context_length": "1000"})
    assert spec.is_shifted
    assert spec.max_prompt_tokens == 744
