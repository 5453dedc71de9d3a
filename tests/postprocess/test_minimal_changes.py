"""The changes of a rewrite: as few characters as possible, and never one half of a line end."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from dg_lsp.postprocess.text_edits import Change, all_applied, minimal_changes

TEXTS = st.text(st.sampled_from("ab \t\r\n(é😋"), max_size=40)


@given(TEXTS, TEXTS, TEXTS)
def test_minimal_changes_turn_the_old_text_into_the_new_one(before, old, new):
    changes = minimal_changes(old, new, len(before))
    assert all_applied(changes, before + old) == before + new
    for first, second in pairwise(changes):
        assert first.end <= second.start
    for change in changes:
        for at in (change.start - len(before), change.end - len(before)):
            assert old[at - 1 : at + 1] != "\r\n" or at == 0


def test_only_differing_text_is_changed():
    old = "a = 1\nb = 2\nc = 3\nd = 4\n"
    assert minimal_changes(old, old.replace("2", "20")) == (Change(11, 11, "0"),)
    assert minimal_changes(old, old.replace("b = 2\n", "")) == (Change(6, 12, ""),)
    changes = minimal_changes(old, "x = 1\nb = 2\nc = 3\nd = 5\n", 100)
    assert changes == (Change(100, 101, "x"), Change(122, 123, "5"))
    assert minimal_changes(old, old) == ()
