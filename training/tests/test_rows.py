"""Batches of documents, and their loader."""

from contextlib import closing

import numpy as np
import pytest

from dg_training.documents import DocumentStream
from dg_training.rows import BatchStream, RowConfig
from dg_training.tokenizer import END_OF_MIDDLE

from .conftest import corpus_files, toy_source

ROWS = RowConfig(num_rows=4, num_clean=384, num_noisy=384, max_middle=64)


def test_the_length_of_a_prompt_does_not_predict_the_length_of_its_middle(toy):
    """An earlier model was useless because its prompts were cut to the rest of a row."""
    files = corpus_files([toy_source(seed, 900) for seed in range(12)])
    stream = BatchStream(DocumentStream(files, toy.tokenizer, ROWS.max_prompt, ROWS.max_middle, seed=9), ROWS)
    pairs = []  # of every middle in 400 rows over long files
    for _ in range(100):
        batch = stream.batch()
        for document, in_middle in zip(batch.document, batch.in_middle, strict=True):
            for i in range(document.max() + 1):
                inside = in_middle[document == i]
                if inside.any():
                    pairs.append((int(np.argmax(inside)), int(inside.sum())))
    prompt, middle = np.array(pairs).T
    assert len(prompt) > 600
    ranks = [np.argsort(np.argsort(lengths)) for lengths in (prompt, middle)]
    assert abs(np.corrcoef(ranks)[0, 1]) < 0.1
    short, long = middle[prompt < np.median(prompt)], middle[prompt >= np.median(prompt)]
    grid = np.arange(1, ROWS.max_middle + 2)
    distributions = [np.searchsorted(np.sort(part), grid, side="right") / len(part) for part in (short, long)]
    # Kolmogorov-Smirnov: 99 of 100 samples of one distribution differ by less
    assert np.abs(distributions[0] - distributions[1]).max() < 1.63 * (2 / len(short)) ** 0.5


@pytest.fixture(scope="module")
def batches(toy):
    stream = toy.rows.stream("train", seed=4)
    return [stream.batch() for _ in range(30)]


def test_documents_are_packed_side_by_side_with_their_own_positions(batches, toy):
    config = toy.rows.config
    assert {batch.target.shape[2] for batch in batches} == set(config.canvas_lengths)
    for batch in batches:
        assert batch.tokens.shape == (config.num_rows, config.num_clean)
        assert batch.target[0].size == config.num_noisy
        for document, position in zip(batch.document, batch.position, strict=True):
            used = document >= 0
            assert used.all() or not used[np.argmin(used) :].any()  # padding only at the end
            for i in range(document.max() + 1):
                at = np.flatnonzero(document == i)
                assert (np.diff(at) == 1).all()
                assert position[at].tolist() == list(range(len(at)))


def test_canvases_hold_the_clean_tokens_at_their_position_then_fill(batches):
    num_middle = num_text = 0
    for batch in batches:
        for r, c in np.argwhere(batch.length > 0):
            start, length, num_content = (int(x[r, c]) for x in (batch.start, batch.length, batch.num_content))
            document = np.flatnonzero(batch.document[r] == batch.document[r, start])
            assert batch.context_start[r, c] == document[0] < start
            assert 0 < num_content <= length <= batch.target.shape[2]
            content = batch.tokens[r, start : start + num_content]
            assert batch.target[r, c, :num_content].tolist() == content.tolist()
            assert (batch.target[r, c, num_content:] == END_OF_MIDDLE).all()
            inside = batch.in_middle[r, start : start + num_content]
            if batch.is_middle[r, c]:
                num_middle += 1
                assert inside.all()
                assert num_content == min(length, document[-1] + 1 - start)
            else:
                num_text += 1
                assert not inside.any()
                assert num_content == length
    assert num_middle > 300
    assert num_text > 30


def test_canvases_cover_a_middle_from_its_start(batches):
    """A canvas starts with the middle, or where the canvas before it ends, as at inference."""
    for batch in batches:
        for r in range(len(batch.tokens)):
            ends = set()
            for c in np.flatnonzero(batch.is_middle[r]):
                start = int(batch.start[r, c])
                is_first = not batch.in_middle[r, start - 1] or batch.document[r, start - 1] != batch.document[r, start]
                assert is_first or start in ends
                ends.add(start + int(batch.length[r, c]))


def test_a_document_that_does_not_fit_waits_for_the_next_row(toy):
    stream, seen = toy.rows.stream("train", seed=2), []
    made = [stream.documents.infill_document() for _ in range(200)]
    stream.waiting.extend(made)
    for _ in range(8):
        batch = stream.batch()
        for tokens, document, in_middle in zip(batch.tokens, batch.document, batch.in_middle, strict=True):
            indices = [i for i in range(document.max() + 1) if in_middle[document == i].any()]
            seen += [tokens[document == i].tolist() for i in indices]
    assert seen == [document.ids.tolist() for document in made[: len(seen)]]
    assert len(made) - len(seen) == len(stream.waiting) > 0


def test_batches_are_the_same_for_the_same_seed(toy):
    def first_tokens(seed, num_processes):
        with closing(toy.rows.training_batches(seed, num_processes)) as batches:
            return [next(batches).tokens.tolist() for _ in range(3)]

    tokens = first_tokens(1, 0)
    assert tokens == first_tokens(1, 0) != first_tokens(8, 0)
    assert tokens[0] != tokens[1]
    of_processes = first_tokens(1, 2)
    assert of_processes == first_tokens(1, 2)
    assert of_processes[0] != of_processes[1]
