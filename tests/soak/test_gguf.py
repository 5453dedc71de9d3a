"""The first files of the campaign of damaged models."""

import math

import pytest

from soak import gguf


@pytest.mark.timeout(900)
def test_no_damaged_vocabulary_ends_the_server():
    figures = gguf.run(seconds=math.inf, seed=0, most=20, changes=gguf.VOCABULARY)
    assert figures["crashes"] == figures["unexpected"] == 0, figures
    assert {"ModelUnsupportedError", "opened"} <= set(figures["outcomes"])


@pytest.mark.timeout(900)
def test_no_damaged_model_ends_the_server():
    figures = gguf.run(seconds=math.inf, seed=0, most=27)
    assert figures["crashes"] == figures["unexpected"] == 0, figures
    assert figures["messages"] == 27
    assert {"ModelBrokenError", "opened"} <= set(figures["outcomes"])
