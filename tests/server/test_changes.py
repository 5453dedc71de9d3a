from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from dg_lsp.server.documents import Change, minimal_changes

TEXTS = st.text(st.sampled_from("ab \t\r\n(é😋"), max_size=40)


def applied(text, changes):
    for change in reversed(changes):
        text = text[: change.start] + change.text + text[change.end :]
    return text


@given(TEXTS, TEXTS, TEXTS)
def test_the_changes_make_the_new_text_of_the_old_one(before, old, new):
    changes = minimal_changes(old, new, len(before))
    assert applied(before + old, changes) == before + new
    for first, second in pairwise(changes):
        assert first.end <= second.start
    for change in changes:
        for at in (change.start - len(before), change.end - len(before)):
            assert old[at - 1 : at + 1] != "\r\n" or at == 0


def test_only_what_differs_is_touched():
    old = "a = 1\nb = 2\nc = 3\nd = 4\n"
    assert minimal_changes(old, old.replace("2", "20")) == (Change(11, 11, "0"),)
    assert minimal_changes(old, old.replace("b = 2\n", "")) == (Change(6, 12, ""),)
    changes = minimal_changes(old, "x = 1\nb = 2\nc = 3\nd = 5\n", 100)
    assert changes == (Change(100, 101, "x"), Change(122, 123, "5"))
    assert minimal_changes(old, old) == ()
