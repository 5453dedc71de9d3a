import pytest

from dg_lsp.backends.scripted import ScriptedDenoiser
from dg_lsp.bench.dataset import TestCase
from dg_lsp.bench.report.films import choose_cases, record_films
from dg_lsp.engine.engine import LocalEngine
from dg_lsp.engine.request import DecoderName, FillRequest
from dg_lsp.engine.result import Cell, Frame
from dg_lsp.settings import CompletionSettings


def case_of(name, reference="a + b"):
    return TestCase(name, "line-end", "first\nsecond\n\n\n\n\nx = ", "\nlast\n" + "z\n" * 50, reference)


def request(case, decoder=None):
    return FillRequest(case.snapshot, case.offset, decoder=decoder)


def engine_of(fill, setting=DecoderName.AUTO):
    denoiser = ScriptedDenoiser(fill, tokens_per_step=2)
    return LocalEngine(denoiser, denoiser.tokenizer, CompletionSettings(decoder=setting.value))


def test_a_film_has_every_step_of_a_fill_and_some_context():
    [film] = record_films(engine_of("a + b"), [case_of("s")], request)
    assert film.case == "s"
    assert [frame.step for frame in film.frames] == [1, 2, 3]
    assert (film.text, film.decoder, film.outcome) == ("a + b", DecoderName.DIFFUSION.value, "exact")
    assert film.before.endswith("\n\nx = ") and film.before.count("\n") == 3
    assert film.after == "\nlast\nz\nz"


@pytest.mark.parametrize(
    ("setting", "requested", "ran"),
    [
        pytest.param(DecoderName.AUTO, None, DecoderName.DIFFUSION, id="free"),
        pytest.param(DecoderName.AUTO, DecoderName.AUTOREGRESSIVE, DecoderName.AUTOREGRESSIVE, id="requested"),
        pytest.param(DecoderName.AUTOREGRESSIVE, None, DecoderName.AUTOREGRESSIVE, id="set"),
    ],
)
def test_a_film_is_of_diffusion_if_the_decoder_is_free(setting, requested, ran):
    [film] = record_films(engine_of("abc", setting), [case_of("s", "abc")], lambda case: request(case, requested))
    assert (film.decoder, film.text) == (ran.value, "abc")
    assert all(step.tokens[0][1] == "a" for step in film.steps())


@pytest.mark.parametrize(
    ("fill", "outcome"), [("    ", "nothing shown"), ("a + b", "exact"), ("a + b\nc", "exact"), ("c", "wrong")]
)
def test_a_film_names_its_outcome(fill, outcome):
    [film] = record_films(engine_of(fill), [case_of("s")], request)
    assert film.outcome == outcome


def test_one_case_of_each_outcome_is_chosen(make_attempt):
    block = {"reference": "return a\n    b"}
    attempts = [
        make_attempt("unknown"),
        make_attempt("several lines", "a", (1, "return a\n    b"), **block),
        make_attempt("first"),
        make_attempt("second"),
        make_attempt("right start", **block),
        make_attempt("wrong", "a", (1, "no")),
        make_attempt("nothing", shown=()),
        make_attempt("nothing again", shown=()),
    ]
    cases = [case_of(attempt.case) for attempt in attempts[1:]]
    chosen = [case.id for case in choose_cases(cases, attempts)]
    assert chosen == ["first", "several lines", "right start", "wrong", "nothing"]
    assert choose_cases(cases, []) == ()


def test_steps_show_accepted_and_new_tokens_and_the_confidence_of_drafts(make_film):
    first, second, third = make_film().steps()
    assert first.caption == "Step 1 of 3: 2 of 6 positions accepted"
    assert first.tokens == (("c4 k n", "self"), ("c4 k n", ".height"), ("c1", " ="), ("c1", " height"))
    assert [style for style, _ in second.tokens] == ["c4 k", "c4 k", "c4 k n", "c4 k n"]
    assert "".join(text for _, text in third.tokens) == "self.height = height"


def test_a_second_canvas_follows_the_settled_text(make_film, make_frame):
    second = Frame(1, 2, (Cell("c", 0.99, True, False), Cell("", 0.3, False, True)), "abc")
    last = list(make_film(frames=(make_frame(1, ("a", "b"), 2), second)).steps())[-1]
    assert (last.settled, last.tokens) == ("ab", (("c5 k n", "c"),))
