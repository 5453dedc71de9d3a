"""The attention of a CPU and FlexAttention, compared with the attention rule written as loops."""

from dataclasses import replace

import pytest
import torch

from dg_lsp.training.network import attend, block_mask, dense_mask
from dg_lsp.training.objective import to_tensors
from dg_lsp.training.rows import open_stream

HEADS, GROUPS, WIDTH = 4, 2, 16


def naive_mask(b):
    """(R, 1, n, n) bool."""
    rows, clean = b["tokens"].shape
    canvases, length = b["target"].shape[1:]
    visible = torch.zeros(rows, clean + canvases * length, clean + canvases * length, dtype=torch.bool)
    for r in range(rows):
        document = b["document"][r]
        visible[r, :clean, :clean] = (document[:, None] == document).tril()
        for c in range(canvases):
            start, context_start, used = (int(b[name][r, c]) for name in ("start", "context_start", "length"))
            first = clean + c * length
            visible[r, first : first + length, context_start:start] = True
            visible[r, first : first + length, first : first + used] = True
    return visible[:, None]


@pytest.fixture(scope="module")
def case(toy):
    rows = replace(toy.config.rows, num_rows=4, num_clean=640, max_middle=128)  # documents of several tiles
    b = to_tensors(open_stream(toy.root, "train", rows, 3).batch(), torch.device("cpu"))
    b["length"][0, 1] = b["start"][0, 1] = b["context_start"][0, 1] = 0  # an empty canvas
    generator = torch.Generator().manual_seed(0)
    n = b["tokens"].shape[1] + b["target"][0].numel()
    q = torch.randn(len(b["tokens"]), HEADS, n, WIDTH, generator=generator)
    k, v = (torch.randn(len(b["tokens"]), GROUPS, n, WIDTH, generator=generator) for _ in range(2))
    has_keys = naive_mask(b).any(-1).expand(-1, HEADS, -1)
    return b, q, k, v, attend(q, k, v, naive_mask(b)), has_keys


def rule(b):
    return b["document"], b["start"], b["context_start"], b["length"], b["target"].shape[2]


def test_dense_attention_follows_the_rule(case):
    b, q, k, v, expected, has_keys = case
    found = attend(q, k, v, dense_mask(*rule(b)))
    assert found.isfinite().all()
    torch.testing.assert_close(found[has_keys], expected[has_keys], rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore::UserWarning")  # flex_attention warns that it is not compiled here
@torch.no_grad()
def test_flex_attention_follows_the_rule(case):
    b, q, k, v, expected, has_keys = case
    found = attend(q, k, v, block_mask(*rule(b)))
    torch.testing.assert_close(found[has_keys], expected[has_keys], rtol=1e-4, atol=1e-5)


def test_flex_attention_visits_the_tiles_with_visible_keys(case):
    b = case[0]
    mask, visible = block_mask(*rule(b)), naive_mask(b)[:, 0]
    rows, n = len(visible), visible.shape[1] // 128
    tiles = visible.view(rows, n, 128, n, 128)
    full = torch.zeros(rows, n, n, dtype=torch.bool)
    for r in range(rows):
        for q in range(n):
            full[r, q, mask.full_kv_indices[r, 0, q, : mask.full_kv_num_blocks[r, 0, q]].long()] = True
    visited = mask.to_dense()[:, 0].bool()
    assert full.any()
    assert not (tiles.any(4).any(2) & ~visited).any()
    assert not (full & ~tiles.all(4).all(2)).any()
    assert visited.sum() < 0.75 * visited.numel()
