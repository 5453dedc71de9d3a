import pytest

from dg_lsp.bench.metrics import Attempt


@pytest.fixture(scope="session")
def attempt():
    """`attempt((40.0, "x"))` showed this text after so many milliseconds."""

    def make(shown=(100.0, ""), **changes):
        facts = {"case": "s", "kind": "block", "contender": "diffusion", "decoder": "canvas", "reference": "x"}
        facts |= {"language": "python", "task": "line-end"}
        costs = {"steps": 2, "tokens": 4, "prefill_ms": 5.0, "model_ms": 50.0, "confidence": 0.6}
        return Attempt(**{"latency_ms": shown[0], "text": shown[1], **facts, **costs, **changes})

    return make
