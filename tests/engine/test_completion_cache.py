from dataclasses import replace

import pytest

from dg_lsp.context.document import Snapshot
from dg_lsp.engine.completion_cache import CompletionCache
from dg_lsp.engine.request import Ending, FillRequest, FillResult, Priority, Timings
from dg_lsp.postprocess.validate import Candidate, Reason, Rejection


def result(*texts):
    candidates = tuple(Candidate(text, -0.1 * number) for number, text in enumerate(texts))
    rejections = () if texts else (Rejection(Reason.EMPTY),)
    return FillResult("scripted", candidates, rejections, 16, 4, 8, 30, 10, Timings(total=3.0))


def at(before, after="", uri="file:///a.py", **options):
    return FillRequest(Snapshot(uri, before + after), len(before), **options)


def texts(result):
    return None if result is None else [candidate.text for candidate in result.candidates]


@pytest.fixture
def cache():
    cache = CompletionCache()
    cache.keep(at("x = ", "\ny = 1\n"), result("foo(bar)"))
    return cache


@pytest.mark.parametrize("num_typed", [0, 3, 7])
def test_rest_is_found_while_the_fill_is_typed(cache, num_typed):
    rest = cache.find(at("x = " + "foo(bar)"[:num_typed], "\ny = 1\n"))
    assert texts(rest) == ["foo(bar)"[num_typed:]]
    assert (rest.steps, rest.output_tokens, rest.timings.total, rest.is_cached) == (0, 0, 0.0, True)


@pytest.mark.parametrize(
    "typed",
    [
        pytest.param(at("x = foo(bar)", "\ny = 1\n"), id="all of it is typed"),
        pytest.param(at("x = fu", "\ny = 1\n"), id="something else is typed"),
        pytest.param(at("z = fo", "\ny = 1\n"), id="another line"),
        pytest.param(at("x =", "\ny = 1\n"), id="something is deleted"),
        pytest.param(at("x = fo", "\ny = 1\nz"), id="another suffix"),
        pytest.param(at("# \nx = fo", "\ny = 1\n"), id="a new line above"),
        pytest.param(at("x = fo", "\ny = 1\n", max_lines=1), id="another limit"),
        pytest.param(at("x = fo", "\ny = 1\n", max_tokens=64), id="another number of tokens"),
        pytest.param(at("x = fo", "\ny = 1\n", client="b"), id="another client"),
        pytest.param(at("x = fo", "\ny = 1\n", uri="file:///b.py"), id="another document"),
        pytest.param(at("if foo(", ")\n"), id="a closed bracket inside of the rest"),
        pytest.param(at("n = 1"), id="a blank rest"),
        pytest.param(at("none"), id="no candidate"),
    ],
)
def test_a_rest_that_does_not_fit_is_not_found(cache, typed):
    cache.keep(at("if ", "\n"), result("foo(bar):"))
    cache.keep(at("n"), result(" = 1\n    "))
    cache.keep(at("none"), result())
    assert cache.find(typed) is None


@pytest.mark.parametrize(("far", "is_found"), [("# a line\n" * 1600, False), ("#" * 20_000 + "\n", True)])
def test_only_a_change_that_no_prompt_shows_may_be_overlooked(far, is_found):
    cache = CompletionCache()
    cache.keep(at(f"a = 1\n{far}x = "), result("foo"))
    assert texts(cache.find(at(f"a = 1\n{far}x = f"))) == ["oo"]
    assert (cache.find(at(f"b = 1\n{far}x = f")) is not None) is is_found


def test_bracket_that_the_editor_closed_is_left_out(cache):
    assert texts(cache.find(at("x = foo(", ")\ny = 1\n"))) == ["bar"]
    assert texts(cache.find(at("x = foo(b", ")\ny = 1\n"))) == ["ar"]
    assert cache.find(at("x = fo", ")\ny = 1\n")) is None, "no bracket was typed"


def test_candidates_narrow_down_while_the_user_types(cache):
    assert cache.find(at("x = ", "\ny = 1\n", num_candidates=3)) is None
    cache.keep(at("x = ", "\ny = 1\n", num_candidates=3), result("foo(bar)", "four", "bar"))
    assert texts(cache.find(at("x = fo", "\ny = 1\n", num_candidates=3))) == ["o(bar)", "ur"]
    assert texts(cache.find(at("x = fou", "\ny = 1\n"))) == ["r"]


@pytest.mark.parametrize("hidden", [{"confidence": 0.01}, {"fault": Reason.NO_EFFECT}], ids=["improbable", "faulty"])
def test_a_good_candidate_is_found_behind_one_that_automatic_requests_hide(hidden):
    cache = CompletionCache()
    best, second = Candidate("foo", -0.1, **hidden), Candidate("fob", -0.2, confidence=0.5)
    cache.keep(at("x = ", num_candidates=3), replace(result("foo"), candidates=(best, second)))
    assert texts(cache.find(at("x = f"), min_confidence=0.05)) == ["ob"]
    assert texts(cache.find(at("x = f"))) == ["oo"]


def test_what_the_user_types_of_an_improbable_fill_makes_its_rest_more_probable():
    cache = CompletionCache()
    fill = Candidate("foo(bar)", -0.1, confidence=0.04, prefixes=((3, 0.8), (4, 0.72), (7, 0.06), (8, 0.048)))
    cache.keep(at("x = "), replace(result("foo"), candidates=(fill,)).confident(0.08))
    assert texts(cache.find(at("x = "), min_confidence=0.08)) == ["foo"]
    assert texts(cache.find(at("x = foo("), min_confidence=0.08)) == []
    [rest] = cache.find(at("x = foo(bar"), min_confidence=0.08).candidates
    assert (rest.text, rest.confidence) == (")", pytest.approx(0.04 / 0.06))
    impossible = replace(fill, confidence=0.0, prefixes=((3, 0.0), (8, 0.0)))
    assert impossible.rest(4).confidence == 0.0


def test_a_requested_completion_is_not_answered_by_an_automatic_one(cache):
    """It is checked more strictly: Python code with it must parse."""
    requested = at("x = f", "\ny = 1\n", priority=Priority.INVOKED)
    assert cache.find(requested) is None
    cache.keep(at("x = ", "\ny = 1\n", priority=Priority.INVOKED), result("foo(baz)"))
    assert texts(cache.find(requested)) == ["oo(baz)"]
    assert texts(cache.find(at("x = f", "\ny = 1\n"))) == ["oo(baz)"]
    in_advance = at("x = ", "\ny = 1\n", priority=Priority.SPECULATION, num_candidates=3)
    cache.keep(in_advance, result("foo(qux)"))
    assert texts(cache.find(requested)) == ["oo(qux)"]


def test_a_completion_that_a_deadline_cut_is_no_answer_where_there_is_more_time(cache):
    cache.keep(at("z = "), replace(result("foo"), ending=Ending.DEADLINE))
    assert texts(cache.find(at("z = f"))) == ["oo"]
    assert cache.find(at("z = f", deadline_ms=60_000.0)) is None
