"""The attention of a CPU and FlexAttention, compared with the attention rule written as loops."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from dg_training.network import attend, block_mask, dense_mask
from dg_training.objective import to_tensors

HEADS, GROUPS, WIDTH = 4, 2, 16


def naive_mask(b):
    """(R, 1, n, n) bool."""
    rows, clean = b["tokens"].shape
    canvases, length = b["target"].shape[1:]
    visible = torch.zeros(rows, clean + canvases * length, clean + canvases * length, dtype=torch.bool)
    for r in range(rows):
        document = b["document"][r]
        visible[r, :clean, :clean] = ((document[:, None] == document) & (document >= 0)).tril()
        for c in range(canvases):
            start, context_start, used = (int(b[name][r, c]) for name in ("start", "context_start", "length"))
            first = clean + c * length
            visible[r, first : first + length, context_start:start] = True
            visible[r, first : first + length, first : first + used] = True
    return visible[:, None]


@pytest.mark.filterwarnings("ignore::UserWarning")  # flex_attention warns that it is not compiled here
@pytest.mark.parametrize("make_mask", [dense_mask, block_mask])
@torch.no_grad()
def test_attention_follows_the_rule(toy, make_mask):
    config = replace(toy.rows.config, num_rows=4, num_clean=640, max_middle=128)  # documents of several tiles
    b = to_tensors(replace(toy.rows, config=config).stream("train", 3).batch(), torch.device("cpu"))
    b["length"][0, 1] = b["start"][0, 1] = b["context_start"][0, 1] = 0  # an empty canvas
    generator = torch.Generator().manual_seed(0)
    n = b["tokens"].shape[1] + b["target"][0].numel()
    q, k, v = (torch.randn(4, heads, n, WIDTH, generator=generator) for heads in (HEADS, GROUPS, GROUPS))
    mask = make_mask(b["document"], b["start"], b["context_start"], b["length"], b["target"].shape[2])
    attended = attend(q, k, v, mask)
    assert attended.isfinite().all()
    visible = naive_mask(b)
    has_keys = visible.any(-1).expand(-1, HEADS, -1)
    expected = F.scaled_dot_product_attention(q, k, v, visible, enable_gqa=True)
    torch.testing.assert_close(attended[has_keys], expected[has_keys], rtol=1e-4, atol=1e-5)
