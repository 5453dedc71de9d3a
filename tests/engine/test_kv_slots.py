from dg_lsp.canvas.layout import token_ids
from dg_lsp.engine.kv_slots import KVSlots

A, B = token_ids([1, 2, 3, 4]), token_ids([9, 8, 7, 6])


def holding(*prompts):
    """Slots that hold these prompts, and their numbers."""
    slots, numbers = KVSlots(len(prompts)), []
    for prompt in prompts:
        numbers.append(slots.choose(prompt))
        slots.hold(numbers[-1], prompt)
    return slots, numbers


def test_prompt_takes_the_slot_that_shares_most_of_it():
    slots, (first, second) = holding(A, B)
    assert first != second
    assert slots.choose(token_ids([1, 2, 3, 5])) == first
    assert slots.choose(token_ids([9, 8, 7, 5])) == second


def test_prompt_that_shares_less_than_half_takes_the_least_recently_used_slot():
    slots, (_, second) = holding(A, B)
    slots.choose(A)
    assert slots.choose(token_ids([1, 5, 5, 5])) == second
