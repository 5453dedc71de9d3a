import json
import math

import pytest

from dg_lsp.metrics.attempt import Attempt, Shown, has_same_first_line, is_same


def attempt(*shown, want="return a", passes=None, **more):
    """An attempt that showed these (ms, text)."""
    items = tuple(Shown(*item) for item in shown)
    given = {"latency_ms": items[-1].ms if items else 90.0, "rejection": None if items else "empty", **more}
    return Attempt(
        site="s/1",
        kind="line-end",
        way="diffusion",
        decoder="diffusion",
        want=want,
        shown=items,
        is_exact=bool(items) and is_same(items[-1].text, want),
        passes=passes,
        steps=3,
        tokens=6,
        confidence=-0.1 if items else math.nan,
        prefill_ms=10.0,
        model_ms=40.0,
        **given,
    )


@pytest.mark.parametrize(
    ("text", "want", "same"),
    [
        pytest.param("a = 1", "a = 1", True, id="equal"),
        pytest.param("a = 1  ", "a = 1\n", True, id="loose ends"),
        pytest.param("a = 1\nb", "a = 1\nc", True, id="only the second line differs"),
        pytest.param("  a = 1", "a = 1", False, id="indented otherwise"),
        pytest.param("a = 12", "a = 1", False, id="more on the line"),
        pytest.param("", "a = 1", False, id="nothing"),
        pytest.param("\n    a = 1", "\n    a = 1\n    b", True, id="a line end first in both"),
        pytest.param("    a = 1", "\n    a = 1", False, id="a line end first in one"),
        pytest.param("\n    a = 1", "\n    a = 2", False, id="a line end alone is not a line"),
        pytest.param("\n", "\n", False, id="nothing to see"),
        pytest.param("a = 1\r\nb", "a = 1\nb", True, id="other line ends"),
    ],
)
def test_the_first_line_is_what_makes_an_item_useful(text, want, same):
    assert has_same_first_line(text, want) is same
    assert attempt((5.0, text), want=want).is_useful is same


@pytest.mark.parametrize(
    ("text", "want", "same"),
    [
        pytest.param("a\n  b", "a  \n  b\n\n", True, id="loose ends"),
        pytest.param("a\n\nb", "a\nb", False, id="an empty line more"),
        pytest.param("a\nb", "a\n b", False, id="indented otherwise"),
    ],
)
def test_exact_is_the_whole_text(text, want, same):
    assert is_same(text, want) is same


def test_nothing_shown_is_a_miss():
    missed = attempt()
    assert not missed.is_useful
    assert missed.ttfue_ms is None
    assert not missed.is_reversed
    assert missed.text == ""


def test_the_first_useful_item_counts():
    assert attempt((20.0, "return b"), (60.0, "return a"), (90.0, "return a\nx")).ttfue_ms == 60.0


def test_a_wrong_first_line_whose_program_passes_is_useful_when_the_final_item_left():
    assert attempt((30.0, "return b"), (70.0, "return 1 * a"), passes=True).ttfue_ms == 70.0
    assert attempt((70.0, "return 1 * a"), passes=False).ttfue_ms is None


def test_failing_tests_do_not_take_a_right_first_line_back():
    assert attempt((70.0, "return a\nx"), passes=False).ttfue_ms == 70.0


def test_a_program_that_passes_with_nothing_shown_is_still_a_miss():
    assert attempt(passes=True).ttfue_ms is None


def test_a_draft_that_began_otherwise_is_a_reversal():
    assert attempt((20.0, "return b"), (60.0, "return a")).is_reversed
    assert not attempt((20.0, "return a"), (60.0, "return a\nmore")).is_reversed


def test_json_and_back():
    for one in (attempt((20.0, "b"), (60.0, "return a"), passes=True), attempt()):
        again = Attempt.parse(json.loads(json.dumps(one.json(), allow_nan=False)))
        assert again.json() == one.json()
        assert isinstance(again.shown, tuple)
        assert math.isnan(again.confidence) == math.isnan(one.confidence)


@pytest.mark.parametrize("change", [{"shown": None}, {"new": 1}], ids=["no items", "an unknown key"])
def test_another_record_is_refused(change):
    with pytest.raises((TypeError, KeyError)):
        Attempt.parse({**attempt().json(), **change})
