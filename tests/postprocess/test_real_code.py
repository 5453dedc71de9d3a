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
    shown = 0
    num = 0
    for middle in cuts([Source(path.name, path.read_text(), path.stem)], NUM_MIDDLES):
        text = bench.damaged(middle, rng.choice(bench.DAMAGES), rng)
        if text is None or not bench.is_rejected(middle, text):
            continue
        result, _ = bench.judged(middle, text)
        num += 1
        is_shown = not isinstance(result, Rejection)
        shown += is_shown and bench.is_rejected(middle, result.text)
    assert num > 0
    assert shown <= 0.25 * num
