"""Sizes of a context."""

from dataclasses import replace

from dg_lsp.backends.llamacpp.memory_estimate import context_budget
from dg_lsp.backends.scripted import MASK_SPEC
from dg_lsp.settings import RuntimeSettings

SPEC = replace(MASK_SPEC, max_prompt_tokens=512, canvas_lengths=(16, 64))


def budget(spec=SPEC, *, vocab_size=8192, trained=4096, kv=4096, **settings):
    return context_budget(
        spec,
        RuntimeSettings(**settings),
        vocab_size=vocab_size,
        trained_length=trained,
        kv_bytes_per_token=kv,
    )


def test_every_slot_fits_by_default():
    made = budget()
    assert made.slot_limit == 512 + 2 * 64
    assert made.context_length >= 4 * made.slot_limit + made.canvas_tokens
    assert made.prompt_limit >= 512
    assert made.context_length % 256 == 0


def test_a_non_causal_batch_always_fits_the_physical_batch():
    for spec in (SPEC, replace(SPEC, canvas_lengths=(1024,)), replace(SPEC, canvas_lengths=(1,))):
        for length in (0, 1, 300, 100_000):
            made = budget(spec, context_length=length)
            assert made.canvas_tokens <= made.batch_tokens <= made.context_length
            assert made.prompt_limit + made.longest_canvas <= max(made.slot_limit, made.longest_canvas)


def test_nothing_goes_beyond_the_trained_length():
    assert budget(trained=300).slot_limit == 300
    assert budget(trained=300, context_length=10_000).slot_limit == 300


def test_an_automatic_cache_is_softly_capped_but_holds_one_prompt():
    made = budget(num_slots=16, kv=1 << 20)
    assert made.context_length <= 1024 + 256
    assert made.context_length >= made.slot_limit
    huge = budget(kv=16 << 20)
    assert huge.context_length >= huge.slot_limit


def test_a_large_vocabulary_gets_fewer_canvas_tokens_but_one_whole_canvas():
    assert budget(vocab_size=262_144).canvas_tokens < budget().canvas_tokens * 2
    assert budget(replace(SPEC, canvas_lengths=(256,)), vocab_size=262_144).canvas_tokens >= 256
