import pytest
from fake_llama import make_fake

from dg_lsp.bench.metrics import Attempt, ShownItem

__all__ = ["make_fake"]


def attempt_of(case="s", contender="diffusion", *shown, **changes):
    """An attempt that showed these (ms, text); without any, a useful and exact one."""
    fields = {
        "kind": "line-end",
        "decoder": "canvas",
        "reference": "return a",
        "shown": tuple(ShownItem(*item) for item in shown) or (ShownItem(40.0, "return a"),),
        "latency_ms": shown[-1][0] if shown else 40.0,
        "steps": 4,
        "tokens": 9,
        "confidence": -0.1,
        "prefill_ms": 10.0,
        "model_ms": 30.0,
    }
    return Attempt(case=case, contender=contender, **{**fields, **changes})


@pytest.fixture(scope="session")
def make_attempt():
    return attempt_of
