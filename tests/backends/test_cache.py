"""Which slot has to go."""

from dg_lsp.backends.llamacpp.kv_cache import PromptCache
from dg_lsp.canvas.layout import token_ids


def filled(cells=100, **prompts):
    cache = PromptCache(4, cells)
    for slot, length in prompts.items():
        cache.hold(int(slot[1:]), token_ids([5] * length))
    return cache


def test_a_slot_never_filled_holds_nothing():
    assert len(filled().held(3)) == 0


def test_nobody_goes_while_there_is_room():
    assert filled(s0=40, s1=40).victims(2, 20) == []


def test_the_least_recently_used_go_first_and_only_as_many_as_needed():
    cache = filled(s0=30, s1=30, s2=30)
    cache.touch(0)
    assert cache.victims(3, 11) == [1]
    assert cache.victims(3, 41) == [1, 2]


def test_a_slot_does_not_give_up_itself():
    assert filled(s0=60, s1=40).victims(0, 40) == [1]
    assert filled(s0=100).victims(0, 40) == []


def test_an_emptied_slot_is_no_victim():
    cache = filled(s0=50, s1=50)
    cache.hold(0, token_ids([]))
    assert cache.victims(2, 60) == [1]
