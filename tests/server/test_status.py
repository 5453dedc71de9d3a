"""Why nothing is shown, as one sentence; tests/cli/test_why.py has the outcomes of checks."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from dg_lsp.engine.request import FillResult, Timings
from dg_lsp.postprocess.validate import Candidate, Reason, Rejection
from dg_lsp.server.status import explain
from dg_lsp.settings import CompletionSettings

ENGINE = SimpleNamespace(spec=SimpleNamespace(name="m"))
RESULT = FillResult("m", (), (), 8, 1, 1, 1, 0, Timings(prefill=700.0, denoise=299.0, total=1000.0))


@pytest.mark.parametrize(
    ("result", "outcome", "words"),
    [
        (
            replace(RESULT, candidates=(Candidate("x", -1.0, 0.0796),)).confident(0.08),
            "hidden",
            "7.96 % probable, below 8 %",
        ),
        (
            replace(RESULT, candidates=(Candidate("x", -1.0, 0.9, Reason.LICENCE),)).confident(0.08),
            "hidden",
            "unless you request it: it is a licence header",
        ),
        (
            replace(RESULT, rejections=(Rejection(Reason.UNFINISHED),)),
            "deadline",
            "Too slow with m: nothing was stable after 1000 ms (completion.deadline_ms).",
        ),
    ],
)
def test_the_outcome_of_an_automatic_completion_is_explained(result, outcome, words):
    explanation = explain(result, CompletionSettings(), ENGINE)
    assert (explanation.outcome, explanation.text) == (outcome, "x" if result.hidden else "")
    assert words in explanation.sentence
