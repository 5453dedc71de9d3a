import numpy as np
import pytest

from dg_lsp.bench.intervals import difference, mean, median, paired, ratio

NAN = np.nan


def array(*values):
    return np.array(values, float)


@pytest.mark.parametrize(
    ("values", "want"),
    [((3, 1, 2), 2), ((4, 1, 2, 3), 2.5), ((NAN, 5, NAN), 5), ((1, NAN, 2), 1.5), ((7,), 7)],
)
def test_a_median_leaves_out_what_is_no_number(values, want):
    assert median(array(*values)) == want


def test_a_median_of_nothing_is_no_number():
    assert np.isnan(median(array(NAN, NAN)))


def test_a_median_reduces_the_last_axis():
    values = np.array([[1.0, 2, 3, NAN], [NAN, NAN, NAN, NAN], [4, 4, NAN, 8]])
    np.testing.assert_array_equal(median(values), [2, NAN, 4])


def test_a_median_is_numpys_where_all_are_numbers():
    values = np.random.default_rng(0).random((50, 31))
    np.testing.assert_allclose(median(values), np.median(values, axis=1))


def test_what_is_always_twice_as_fast_is_so_for_sure():
    theirs = np.random.default_rng(1).lognormal(size=200)
    found = paired(theirs / 2, theirs, median, ratio, seed=0)
    assert (found.value, found.low, found.high) == (2, 2, 2)


def test_pairing_makes_it_surer_than_the_spread_of_the_sites():
    rng = np.random.default_rng(2)
    theirs = rng.lognormal(sigma=2, size=300)
    ours = theirs * rng.uniform(0.9, 1.1, 300)
    together = paired(ours, theirs, median, ratio, seed=0)
    apart = paired(rng.permutation(ours), theirs, median, ratio, seed=0)
    assert together.low < 1 < together.high
    assert together.high - together.low < (apart.high - apart.low) / 2


def test_the_interval_holds_the_true_value_about_as_often_as_it_says():
    rng = np.random.default_rng(3)
    hits = 0
    for seed in range(100):
        ours, theirs = rng.random(80) < 0.5, rng.random(80) < 0.3
        found = paired(ours.astype(float), theirs.astype(float), mean, difference, seed=seed)
        hits += found.low <= 0.2 <= found.high
    assert 88 <= hits <= 100


def test_the_same_seed_gives_the_same_interval():
    rng = np.random.default_rng(4)
    ours, theirs = rng.random(40), rng.random(40)
    assert paired(ours, theirs, median, ratio, seed=5) == paired(ours, theirs, median, ratio, seed=5)
    assert paired(ours, theirs, median, ratio, seed=5) != paired(ours, theirs, median, ratio, seed=6)


@pytest.mark.parametrize(
    ("ours", "theirs"), [((), ()), ((NAN, NAN), (1, 2)), ((0, 0), (1, 1))], ids=["no sites", "no hits", "no time"]
)
def test_what_cannot_be_compared_is_none(ours, theirs):
    assert paired(array(*ours), array(*theirs), median, ratio, seed=0) is None


def test_resamples_without_a_hit_do_not_count():
    ours, theirs = array(NAN, NAN, NAN, 2.0), array(4.0, 4, 4, 4)
    found = paired(ours, theirs, median, ratio, seed=0)
    assert (found.value, found.low, found.high) == (2, 2, 2)


def test_json_is_rounded():
    found = paired(array(3, 3), array(1, 1), mean, ratio, seed=0)
    assert found.json() == {"value": 0.3333, "low": 0.3333, "high": 0.3333}
