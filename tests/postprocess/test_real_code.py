"""Real files of every language: a correct fill comes back unchanged, a damaged one does not.

The sample is small; `benchmarks/dg_benchmarks/languages.py` measures thousands of middles.
"""

import importlib
import random
import sys
from pathlib import Path

import pytest

from dg_lsp.bench.dataset import Source, cuts
from dg_lsp.postprocess.validate import Rejection

SAMPLES = sorted(Path(__file__).with_name("real_code").glob("*.txt"))
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
bench = importlib.import_module("dg_benchmarks.languages")
sys.path.pop(0)
UNCHECKED = {"markdown", "sql"}  # the grammar accepts every text, or rejects valid dialects
NUM_MIDDLES = 60


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_correct_fills_of_a_real_file_come_back_unchanged(path):
    middles = list(cuts([Source(path.name, path.read_text(), path.stem)], NUM_MIDDLES))
    results = [bench.judged(middle, middle.reference)[0] for middle in middles]
    outcomes = [bench.outcome(result, middle.reference) for middle, result in zip(middles, results, strict=True)]
    assert outcomes.count("unchanged") >= NUM_MIDDLES - 2
    assert outcomes.count("refused") <= 1


@pytest.mark.parametrize("path", [path for path in SAMPLES if path.stem not in UNCHECKED], ids=lambda path: path.stem)
def test_damaged_fills_of_a_real_file_are_refused_or_mended(path):
    rng = random.Random(1)
    are_shown = []
    for middle in cuts([Source(path.name, path.read_text(), path.stem)], NUM_MIDDLES):
        text = bench.damaged(middle, rng.choice(bench.DAMAGES), rng)
        if text is not None and bench.is_rejected(middle, text):
            result, _ = bench.judged(middle, text)
            are_shown.append(not isinstance(result, Rejection) and bench.is_rejected(middle, result.text))
    assert are_shown
    assert sum(are_shown) <= 0.25 * len(are_shown)
