import numpy as np
import pytest

from dg_lsp.training.resizing import resized_truth
from dg_lsp.training.vocabulary import DELETE, EXPAND

REST = np.arange(100, 110, dtype=np.int32)


def undone(resized, rest):
    """The tokens that the slots stand for."""
    found, at = [], 0
    for token in resized.truth.tolist():
        if token == DELETE:
            continue
        size = 2 if token == EXPAND else 1
        found += rest[at : at + size].tolist()
        if size == 1:
            assert token == rest[at]
        at += size
    return found


@pytest.mark.parametrize("length", [5, 7, 10, 16])
def test_the_slots_stand_for_all_that_is_left(length):
    rng = np.random.default_rng(0)
    for _ in range(200):
        resized = resized_truth(REST, length, rng)
        assert len(resized.truth) == length
        assert undone(resized, REST) == REST.tolist()
        deleted = np.flatnonzero(resized.truth == DELETE)
        assert deleted.tolist() == list(range(resized.content, length))


def test_what_is_more_than_twice_as_long_does_not_fit():
    rng = np.random.default_rng(0)
    assert resized_truth(REST, 4, rng) is None
    assert resized_truth(REST[:0], 4, rng) is None


def test_every_place_may_be_a_pair():
    rng = np.random.default_rng(0)
    seen = {int(np.flatnonzero(resized_truth(REST, 9, rng).truth == EXPAND)[0]) for _ in range(300)}
    assert seen == set(range(9))
