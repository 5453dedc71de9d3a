import numpy as np
import pytest

pytest.importorskip("tokenizers")

from dg_lsp.training.documents import Documents
from dg_lsp.training.rows import Rows
from dg_lsp.training.store import load_store
from dg_lsp.training.vocabulary import DELETE, END_OF_MIDDLE, EXPAND, MASK, MIDDLE, SUFFIX


def make_rows(toy, seed=4):
    config = toy.config.rows
    documents = Documents(load_store(toy.root / "train"), toy.tokenizer, config.max_prompt, config.max_middle, seed)
    return Rows(documents, config)


@pytest.fixture(scope="module")
def batches(toy):
    rows = make_rows(toy)
    return [rows.batch() for _ in range(30)]


def test_shapes_never_change_but_for_the_canvas_length(batches, toy):
    config = toy.config.rows
    for batch in batches:
        slots = batch.truth.shape[2]
        assert slots in config.canvas_lengths
        assert batch.tokens.shape == (config.rows, config.num_clean)
        assert batch.truth.shape == (config.rows, config.num_noisy // slots, slots)
        assert batch.start.shape == batch.low.shape == batch.length.shape == batch.truth.shape[:2]
    assert {batch.truth.shape[2] for batch in batches} == set(config.canvas_lengths)


def test_documents_are_packed_side_by_side_with_positions_of_their_own(batches):
    for batch in batches:
        for document, position in zip(batch.document, batch.position, strict=True):
            used = document >= 0
            assert not used[np.argmin(used) :].any() or used.all()  # padding only at the end
            for i in range(document.max() + 1):
                at = np.flatnonzero(document == i)
                assert (np.diff(at) == 1).all()
                assert position[at].tolist() == list(range(len(at)))


def test_clean_rows_hold_no_masks_and_one_end_per_middle(batches):
    for batch in batches:
        assert not (batch.tokens == MASK).any()
        for tokens, document, in_middle in zip(batch.tokens, batch.document, batch.in_middle, strict=True):
            for i in range(document.max() + 1):
                ids, inside = tokens[document == i], in_middle[document == i]
                if inside.any():
                    assert ids[0] == SUFFIX
                    assert ids[np.argmax(inside) - 1] == MIDDLE
                    assert ids[-1] == END_OF_MIDDLE
                    assert (ids == END_OF_MIDDLE).sum() == 1


def test_canvases_repeat_the_clean_tokens_at_their_place_then_fill(batches):
    num_middle = num_text = 0
    for batch in batches:
        for r, c in np.argwhere(batch.length > 0):
            start, length, content = (int(x[r, c]) for x in (batch.start, batch.length, batch.content))
            document = batch.document[r, start]
            end = int(np.flatnonzero(batch.document[r] == document)[-1]) + 1
            assert batch.low[r, c] == np.flatnonzero(batch.document[r] == document)[0]
            assert batch.low[r, c] < start
            assert 0 < content <= length <= batch.truth.shape[2]
            assert batch.truth[r, c, :content].tolist() == batch.tokens[r, start : start + content].tolist()
            assert (batch.truth[r, c, content:] == END_OF_MIDDLE).all()
            if batch.is_middle[r, c]:
                num_middle += 1
                assert batch.in_middle[r, start : start + content].all()
                assert content == min(length, end - start)
            else:
                num_text += 1
                assert not batch.in_middle[r, start : start + content].any()
                assert content == length
    assert num_middle > 300
    assert num_text > 30


def test_middles_are_tiled_from_their_start(batches):
    """A canvas begins with the middle, or where the canvas before it ended: as canvases follow one another at work."""
    for batch in batches:
        for r in range(len(batch.tokens)):
            ends = set()
            for c in np.flatnonzero(batch.is_middle[r]):
                start = int(batch.start[r, c])
                is_first = not batch.in_middle[r, start - 1] or batch.document[r, start - 1] != batch.document[r, start]
                assert is_first or start in ends
                ends.add(start + int(batch.length[r, c]))


def test_a_stream_continues_from_its_state(toy):
    rows = make_rows(toy)
    for _ in range(3):
        rows.batch()
    other = make_rows(toy, seed=99)
    other.restore(rows.state())
    for _ in range(3):
        a, b = rows.batch(), other.batch()
        assert (a.tokens == b.tokens).all()
        assert (a.truth == b.truth).all()


def test_plain_rows_hold_no_middle(toy):
    rows = make_rows(toy)
    rows.config = toy.replace(rows.config, plain_share=1.0)
    batch = rows.batch()
    assert not batch.in_middle.any()
    assert not np.isin(batch.tokens, [SUFFIX, MIDDLE]).any()
    assert (batch.document >= 0).mean() > 0.85
    assert batch.length.any()
    assert not batch.is_middle.any()


def test_resized_canvases_hold_the_whole_rest_of_their_middle(toy):
    rows = make_rows(toy)
    rows.config = toy.replace(rows.config, resized_share=1.0)
    seen = set()
    for _ in range(20):
        batch = rows.batch()
        for i, j in zip(*np.nonzero(batch.is_middle), strict=True):
            truth = batch.truth[i, j, : batch.length[i, j]]
            seen |= set(truth[np.isin(truth, [EXPAND, DELETE])].tolist())
            if np.isin(truth, [EXPAND, DELETE]).any():
                assert END_OF_MIDDLE not in truth
    assert seen == {EXPAND, DELETE}
