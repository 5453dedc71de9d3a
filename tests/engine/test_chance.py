import math

import numpy as np
import pytest

from dg_lsp.backends.scripted import ByteTokenizer
from dg_lsp.engine.stop_criteria import confidence_of

TOKENIZER = ByteTokenizer()


def chance(text, *confidence):
    return confidence_of(TOKENIZER.encode(text), np.array(confidence, np.float32), TOKENIZER)


def test_a_line_is_as_likely_as_all_of_its_tokens_and_its_end_together():
    assert chance("abc", 0.5, 0.5, 0.5) == pytest.approx(0.125)
    assert chance("abc", 0.5, 0.5, 0.5, 0.1) == pytest.approx(0.0125)


def test_only_the_first_line_with_text_counts():
    assert chance("a\nbc", 0.5, 0.5, 0.1, 0.1, 0.1) == pytest.approx(0.25)
    assert chance("\n a\nb", 0.5, 0.5, 0.5, 0.5, 0.1) == pytest.approx(0.0625)


def test_nothing_is_certain_of_itself_and_no_probability_is_lost():
    assert chance("") == 1.0
    assert math.isfinite(chance("a" * 64, *[0.0] * 64))
