import time

import pytest

from dg_lsp.backends.scripted import ScriptedDenoiser
from dg_lsp.context.document import Snapshot
from dg_lsp.engine.engine import Engine, drain
from dg_lsp.engine.request import RewriteRequest
from dg_lsp.engine.rewrite import whole_lines, without_blanks
from dg_lsp.errors import RequestError
from dg_lsp.postprocess.validate import Reason
from dg_lsp.settings import FillSettings

SOURCE = "def f(a):\n    total = a + 1\n    return total\n"
LINE = (SOURCE.index("    total"), SOURCE.index("    return"))


def request(text=SOURCE, where=LINE, **more):
    return RewriteRequest(Snapshot("file:///a.py", 1, text), *where, **more)


def engine_of(fill, **settings):
    denoiser = ScriptedDenoiser(fill)
    return Engine(denoiser, denoiser.tokenizer, FillSettings(**settings))


def rewritten(engine, asked):
    return drain(engine.rewrite(asked))


def applied(result, text=SOURCE):
    return text[: result.start] + result.text + text[result.end :]


def test_from_nothing_the_stretch_is_a_hole_and_its_blanks_stay():
    result = rewritten(engine_of("total = 2 * a"), request())
    assert applied(result) == SOURCE.replace("a + 1", "2 * a")
    assert result.rejection is None
    assert result.steps > 0


def test_partly_kept_tokens_stay_where_they_are():
    # the script writes `total = a * 2` wherever there is a mask
    result = rewritten(engine_of("total = a * 2"), request(strength=0.5, seed=3))
    new = applied(result).split("\n")[1].strip()
    assert len(new) == len("total = a + 1")
    assert all(char in pair for char, pair in zip(new, zip("total = a + 1", "total = a * 2", strict=True), strict=True))
    assert new != "total = a + 1"


def test_what_stays_the_same_is_said_so_after_some_tries():
    result = rewritten(engine_of("total = a + 1"), request(strength=0.3))
    assert (result.text, result.rejection.reason) == ("", Reason.UNCHANGED)
    assert result.steps >= 4


def test_an_instruction_for_a_model_that_knows_none_is_a_comment():
    seen = []

    def fill(prefix, _suffix):
        seen.append(prefix)
        return "total = 3"

    result = rewritten(engine_of(fill), request(instruction="make it\nthree"))
    assert not result.follows_instructions
    assert "    # make it three\n    " in seen[-1]
    assert applied(result) == SOURCE.replace("a + 1", "3")


@pytest.mark.parametrize(
    ("where", "more"), [((5, 5), {}), ((0, 999), {}), ((9, 4), {}), ((9, 13), {}), (LINE, {"strength": 0.0})]
)
def test_nonsense_is_refused(where, more):
    with pytest.raises(RequestError):
        rewritten(engine_of("x"), request(where=where, **more))


def test_at_the_deadline_there_is_nothing():
    engine = engine_of("total = 2 * a")
    for strength in (0.5, 1.0):
        result = drain(engine.rewrite(request(strength=strength), deadline=time.monotonic() - 1))
        assert result.rejection.reason is Reason.UNFINISHED


def test_who_stops_asking_has_cancelled_and_a_fill_works_afterwards():
    engine = engine_of("total = 2 * a")
    steps = engine.rewrite(request(strength=0.9))
    next(steps)
    steps.close()
    assert applied(rewritten(engine, request())) == SOURCE.replace("a + 1", "2 * a")


@pytest.mark.parametrize(
    ("text", "where", "expected"),
    [
        ("a\nbc\nd", (3, 4), "bc\n"),
        ("a\nbc\nd", (2, 5), "bc\n"),
        ("a\r\nb\r\nc", (3, 4), "b\r\n"),
        ("ab", (1, 2), "ab"),
    ],
)
def test_lines_are_whole(text, where, expected):
    start, end = whole_lines(text, *where)
    assert text[start:end] == expected


def test_blanks_around_a_stretch_are_not_the_models():
    start, end = without_blanks("a\n  b c \n\nd", 1, 9)
    assert "a\n  b c \n\nd"[start:end] == "b c"
