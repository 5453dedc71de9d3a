import pytest

from dg_lsp.canvas.spec import DecoderName
from dg_lsp.cli.output import fill_object, rejection_reason, timing_line
from dg_lsp.engine.result import FillResult, Timings
from dg_lsp.postprocess.validate import Candidate, Reason, Rejection

TIMINGS = Timings(prefill=10.0, denoise=20.0, postprocess=1.0, total=31.5, predict=18.0)


def result_of(candidates=(), rejections=()):
    return FillResult("m", candidates, rejections, 32, 4, 10, 100, 90, TIMINGS, DecoderName.DIFFUSION)


def test_the_total_includes_the_load():
    times = fill_object(result_of(), 100.0)["timings_ms"]
    assert times == {"load": 100.0, "prefill": 10.0, "denoise": 20.0, "postprocess": 1.0, "total": 131.5}


def test_the_best_candidate_is_the_text():
    both = (Candidate("best", -0.123456), Candidate("second", -2.0))
    answer = fill_object(result_of(both, (Rejection(Reason.EMPTY),)), 0.0)
    assert answer["text"] == "best"
    assert answer["candidates"] == [{"text": "best", "score": -0.1235}, {"text": "second", "score": -2.0}]
    assert answer["rejected"] is None


@pytest.mark.parametrize("reason", list(Reason))
def test_without_a_candidate_the_best_rejection_is_the_reason(reason):
    assert rejection_reason(result_of((), (Rejection(reason), Rejection(Reason.EMPTY)))) == reason.value


def test_the_timing_line():
    line = timing_line(result_of(), 250.0)
    assert line == (
        "m: 32 ms (prefill 10, denoise 20, postprocess 1) after 250 ms load; "
        "diffusion 32, 4 steps, 2.5 tokens per step; prompt 100 tokens, 90 cached"
    )
