import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest
from scripted import MASK_SPEC, ScriptedDenoiser, engine_for

from dg_lsp.bench import runner
from dg_lsp.bench.dataset import TestCase, read_cases
from dg_lsp.engine.request import DecoderName

CASE = TestCase("s0", "line-end", "a = ", "\n", "want 0")
TESTED = dataclasses.replace(CASE, test="def check(f): pass", entry_point="f")
HEADER = runner.RunHeader("compare", {"cpu": "a cpu"}, "m", "00")
[LINE_END, *_] = read_cases(Path(__file__).parent / "problems.jsonl")


@pytest.fixture
def log():
    return []


@pytest.fixture
def contenders(log, attempt):
    """`contenders(a="x")`: one with the name `a`, who answers every case with `x`."""

    def make(name, text):
        def answer(case):
            log.append((name, case.id))
            return attempt((10.0, text), case=case.id, contender=name, reference=case.reference)

        return SimpleNamespace(name=name, notes=(f"note of {name}",), answer=answer)

    return lambda **answers: [make(*item) for item in answers.items()]


def test_after_a_warm_up_contenders_answer_each_case_in_an_order_that_depends_on_case_and_seed(contenders, log):
    three = contenders(a="x", b="y", c="z")
    cases = [dataclasses.replace(CASE, id=f"x{i}") for i in range(60)]
    orders = []
    for seed in (0, 0, 1):
        log.clear()
        run = runner.run_cases(cases, three, HEADER, seed=seed)
        assert [(attempt.contender, attempt.case) for attempt in run.attempts] == [
            (name, case.id) for name in "abc" for case in cases
        ]
        assert run.notes == ("note of a", "note of b", "note of c")
        assert log[:3] == [(name, runner.WARM_UP.id) for name in "abc"]
        assert [case for _, case in log[3:]] == [case.id for case in cases for _ in three]
        orders.append([name for name, _ in log[3:]])
    first, again, other = orders
    assert first == again != other
    assert len({tuple(first[i : i + 3]) for i in range(0, len(first), 3)}) == 6


def test_a_request_has_similar_code_of_the_rest_of_the_file():
    engine = SimpleNamespace(spec=dataclasses.replace(MASK_SPEC, takes_snippets=True, max_prompt_tokens=64))
    filler = "value = 1\n" * 60
    prefix = f"def order(price, tax):\n    return price * tax\n{filler}def bill(price, tax):\n    return "
    request = runner.EngineContender("x", engine).request(dataclasses.replace(CASE, prefix=prefix))
    assert "return price * tax" in request.snippets.chunks[0].text
    never = runner.EngineContender("x", engine, options=runner.RequestOptions(context="never"))
    assert never.request(dataclasses.replace(CASE, prefix=prefix)).snippets.chunks == ()


def test_tests_run_after_all_contenders_have_answered_a_case(contenders, log):
    def failure(program):
        log.append(("sandbox", program))
        return "" if TESTED.reference in program else "AssertionError"

    answers = {"right": TESTED.reference, "wrong": "other", "nothing": ""}
    cases = [TESTED, dataclasses.replace(CASE, id="s1")]
    attempts = runner.run_cases(cases, contenders(**answers), HEADER, sandbox=SimpleNamespace(failure=failure)).attempts
    passes = {(attempt.contender, attempt.case): attempt.passes for attempt in attempts}
    assert [passes[name, "s0"] for name in answers] == [True, False, False]
    assert [passes[name, "s1"] for name in answers] == [None] * 3
    names = [name for name, _ in log if name != runner.WARM_UP.id]
    assert names.index("sandbox") == 6  # a warm-up and an answer of each


def test_a_note_names_each_language_that_the_model_does_not_know():
    spec = dataclasses.replace(MASK_SPEC, name="tiny", languages=("python",))
    problem = "tiny knows Python only; choose another model: dg-lsp setup"
    assert runner.language_notes(spec, ["python", "ruby", "ruby"]) == [f"Editors show nothing in ruby: {problem}."]


def contender(fill, script, decoder=None, **options):
    engine = engine_for(ScriptedDenoiser(fill, **script), max_tokens=500)  # a token is a byte here
    return runner.EngineContender("auto", engine, decoder, runner.RequestOptions(**options))


def test_a_deadline_and_an_early_stop_shorten_the_fill():
    slow = {"tokens_per_step": 1, "step_seconds": 0.02}
    assert contender("width * height", slow, deadline_ms=1).answer(LINE_END).steps <= 1
    assert contender("width * height", slow).answer(LINE_END).is_exact
    case = TestCase("s", "block", "def f(w, h):\n    ", "\n    return a\n", "a = w")
    for early_stop_ms, text in ((0.0, "a = w\n    b = h"), (0.001, "a = w")):
        options = {"deadline_ms": 6e5, "early_stop_ms": early_stop_ms}
        assert contender("a = w\n    b = h\n", slow, **options).answer(case).text == text


def test_a_warm_contender_has_the_prompt_in_its_cache():
    nums = []
    for is_warm in (False, True):
        engine_contender = contender("width * height", {}, DecoderName.DIFFUSION, is_warm=is_warm)
        assert engine_contender.answer(LINE_END).is_exact
        nums.append(engine_contender.engine._model.denoiser.num_prefilled)
    # one byte of the prefix and the middle sentinel are decoded again
    assert nums[1] == nums[0] - 1 + 2
