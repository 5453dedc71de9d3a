import pytest

from dg_lsp.context.document import Snapshot
from dg_lsp.engine.completion_cache import CompletionCache
from dg_lsp.engine.request import FillRequest
from dg_lsp.engine.result import FillResult, Timings
from dg_lsp.postprocess.validate import Candidate, Reason, Rejection

NO_TIME = Timings(1.0, 1.0, 1.0, 3.0, 1.0)


def result(*texts):
    candidates = tuple(Candidate(text, -0.1 * number) for number, text in enumerate(texts))
    rejections = () if texts else (Rejection(Reason.EMPTY),)
    return FillResult("scripted", candidates, rejections, 16, 4, 2.0, 30, 10, NO_TIME)


def at(before, after="", uri="file:///a.py", **more):
    return FillRequest(Snapshot(uri, 1, before + after), len(before), **more)


def texts(found):
    return None if found is None else [one.text for one in found.candidates]


@pytest.fixture
def cache():
    cache = CompletionCache()
    cache.keep(at("x = ", "\ny = 1\n"), result("foo(bar)"))
    return cache


@pytest.mark.parametrize("num_typed", range(8))
def test_the_rest_is_served_while_it_is_typed(cache, num_typed):
    found = cache.find(at("x = " + "foo(bar)"[:num_typed], "\ny = 1\n"))
    assert texts(found) == ["foo(bar)"[num_typed:]]
    assert (found.steps, found.timings.total, found.is_cached) == (0, 0.0, True)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x = foo(bar)", "\ny = 1\n"),  # all of it is typed
        ("x = fu", "\ny = 1\n"),  # another way
        ("z = fo", "\ny = 1\n"),  # another line
        ("x =", "\ny = 1\n"),  # something was deleted
        ("x = fo", "\ny = 2\n"),  # what follows is different
        ("x = fo", "\ny = 1\nz"),
        ("x = fo", ""),
        ("# \nx = fo", "\ny = 1\n"),  # a line above is new
    ],
)
def test_elsewhere_nothing_is_served(cache, before, after):
    assert cache.find(at(before, after)) is None


def test_a_bracket_that_the_editor_closed_is_left_out(cache):
    assert texts(cache.find(at("x = foo(", ")\ny = 1\n"))) == ["bar"]
    assert texts(cache.find(at("x = foo(b", ")\ny = 1\n"))) == ["ar"]
    # whoever typed no bracket has none closed
    assert cache.find(at("x = fo", ")\ny = 1\n")) is None


def test_a_closed_bracket_inside_of_the_rest_is_not_guessed_at():
    cache = CompletionCache()
    cache.keep(at("if ", "\n"), result("foo(bar):"))
    assert cache.find(at("if foo(", ")\n")) is None


def test_a_rest_of_blanks_is_nothing():
    cache = CompletionCache()
    cache.keep(at("x"), result(" = 1\n    "))
    assert cache.find(at("x = 1")) is None


def test_other_questions_have_other_answers(cache):
    for more in ({"max_lines": 1}, {"seed": 1}, {"suffix_lines": 0}, {"uri": "file:///b.py"}):
        assert cache.find(at("x = fo", "\ny = 1\n", **more)) is None


def test_several_candidates_are_asked_for_anew_and_then_narrow_down(cache):
    assert cache.find(at("x = ", "\ny = 1\n", num_candidates=3)) is None
    cache.keep(at("x = ", "\ny = 1\n", num_candidates=3), result("foo(bar)", "four", "bar"))
    assert texts(cache.find(at("x = fo", "\ny = 1\n", num_candidates=3))) == ["o(bar)", "ur"]
    assert texts(cache.find(at("x = fou", "\ny = 1\n"))) == ["r"]


def test_nothing_is_remembered_of_a_fill_that_came_to_nothing():
    cache = CompletionCache()
    cache.keep(at("x = "), result())
    assert cache.find(at("x = ")) is None


def test_the_oldest_go_first_and_what_is_used_stays():
    cache = CompletionCache(capacity=2)
    for uri in ("file:///a", "file:///b"):
        cache.keep(at("x", uri=uri), result("y"))
    assert cache.find(at("x", uri="file:///a"))
    cache.keep(at("x", uri="file:///c"), result("y"))
    assert [bool(cache.find(at("x", uri=f"file:///{name}"))) for name in "abc"] == [True, False, True]


def test_far_away_text_may_change():
    cache = CompletionCache()
    far = "#" * 5000 + "\n"
    cache.keep(at("a" + far + "x = ", "\n" + far + "a"), result("foo"))
    assert texts(cache.find(at("b" + far + "x = f", "\n" + far + "b"))) == ["oo"]
