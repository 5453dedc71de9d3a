"""A prompt must say nothing about its middle's length: the fault that ruined an earlier model of this shape.

There the prompt was cut to what the middle left of a row, so prompt and middle always ended at the last slot.
"""

import random

import numpy as np
import pytest

pytest.importorskip("tokenizers")

from dg_lsp.training.config import RowConfig
from dg_lsp.training.documents import Documents
from dg_lsp.training.rows import Rows
from dg_lsp.training.store import build_store

from .conftest import source

ROWS = RowConfig(rows=4, num_clean=384, num_noisy=384, max_middle=64)


@pytest.fixture(scope="module")
def prompts_and_middles(toy):
    """(prompt length, middle length) of every middle in 400 rows over long files, as the rows really hold them."""
    rng = random.Random(8)
    store = build_store([source(rng, 900) for _ in range(12)], toy.tokenizer)
    rows = Rows(Documents(store, toy.tokenizer, ROWS.max_prompt, ROWS.max_middle, seed=9), ROWS)
    pairs = []
    for _ in range(100):
        batch = rows.batch()
        for document, in_middle in zip(batch.document, batch.in_middle, strict=True):
            for i in range(document.max() + 1):
                inside = in_middle[document == i]
                if inside.any():
                    pairs.append((int(np.argmax(inside)), int(inside.sum())))
    return np.array(pairs)


def test_prompt_and_middle_lengths_are_uncorrelated(prompts_and_middles):
    prompt, middle = prompts_and_middles.T
    assert len(prompt) > 600
    ranks = [np.argsort(np.argsort(x)) for x in (prompt, middle)]
    assert abs(np.corrcoef(ranks)[0, 1]) < 0.1


def test_middles_after_short_and_long_prompts_are_alike(prompts_and_middles):
    prompt, middle = prompts_and_middles.T
    short, long = middle[prompt < np.median(prompt)], middle[prompt >= np.median(prompt)]
    grid = np.arange(1, ROWS.max_middle + 2)
    distributions = [np.searchsorted(np.sort(part), grid, side="right") / len(part) for part in (short, long)]
    # Kolmogorov-Smirnov: 1.63 sqrt(2 / n) holds in 99 of 100 samples of one distribution
    assert np.abs(distributions[0] - distributions[1]).max() < 1.63 * (2 / len(short)) ** 0.5


def test_the_place_of_the_end_is_not_known_from_the_row(prompts_and_middles):
    """Prompt and middle together spread over all lengths: neither ends at one place."""
    total = prompts_and_middles.sum(1)
    _, counts = np.unique(total, return_counts=True)
    assert counts.max() < 0.05 * len(total)
    assert total.max() <= ROWS.num_clean


def test_prompts_cover_what_inference_uses(prompts_and_middles):
    prompt = prompts_and_middles[:, 0]
    assert np.quantile(prompt, 0.05) < 40
    assert np.quantile(prompt, 0.95) > 0.8 * ROWS.max_prompt


def test_a_document_that_does_not_fit_waits_whole(toy):
    """Nothing is lost, cut or drawn again on the way from the stream of documents into rows."""
    rng = random.Random(8)
    store = build_store([source(rng, 300) for _ in range(6)], toy.tokenizer)

    def documents():
        return Documents(store, toy.tokenizer, ROWS.max_prompt, ROWS.max_middle, seed=2)

    made = []
    recorded = documents()
    make = recorded.fims

    def record(num):
        found = make(num)
        made.extend(found)
        return found

    recorded.fims = record
    rows = Rows(recorded, ROWS)
    seen = []
    for _ in range(8):
        batch = rows.batch()
        for tokens, document, in_middle in zip(batch.tokens, batch.document, batch.in_middle, strict=True):
            fims = [i for i in range(document.max() + 1) if in_middle[document == i].any()]
            seen += [tokens[document == i].tolist() for i in fims]
    assert seen == [document.ids.tolist() for document in made[: len(seen)]]
    assert len(made) - len(seen) == len(rows.waiting)
