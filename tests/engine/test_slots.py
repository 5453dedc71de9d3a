from dg_lsp.canvas.layout import token_ids
from dg_lsp.engine.kv_slots import KVSlots


def test_a_prompt_returns_to_the_slot_that_shares_most_of_it():
    slots = KVSlots(2)
    a, b = token_ids([1, 2, 3, 4]), token_ids([9, 8, 7, 6])
    first = slots.choose(a)
    slots.hold(first, a)
    second = slots.choose(b)
    slots.hold(second, b)
    assert first != second
    assert slots.choose(token_ids([1, 2, 3, 5])) == first
    assert slots.choose(token_ids([9, 8, 7, 5])) == second


def test_a_prompt_that_shares_less_than_half_takes_the_least_recently_used():
    slots = KVSlots(2)
    a, b = token_ids([1, 2, 3, 4]), token_ids([9, 8, 7, 6])
    first, second = slots.choose(a), 0
    slots.hold(first, a)
    second = slots.choose(b)
    slots.hold(second, b)
    slots.choose(a)
    assert slots.choose(token_ids([1, 5, 5, 5])) == second
