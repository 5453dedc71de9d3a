import pytest

from dg_lsp.bench.metrics import Attempt


def attempt_of(case="s", contender="diffusion", shown=(40.0, "return a"), **changes):
    """An attempt that showed this (ms, text), a useful and exact one by default."""
    fields = {
        "kind": "line-end",
        "decoder": "canvas",
        "reference": "return a",
        "text": shown[1],
        "latency_ms": shown[0],
        "steps": 4,
        "tokens": 9,
        "confidence": 0.6,
        "prefill_ms": 10.0,
        "model_ms": 30.0,
    }
    return Attempt(case=case, contender=contender, **{**fields, **changes})


@pytest.fixture(scope="session")
def make_attempt():
    return attempt_of
