"""The CPU's products and FlexAttention against the mask rule written out slot by slot."""
# ruff: noqa: E402 - what may be missing is asked for first

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tokenizers")

from dg_lsp.training.attention import attend, visible
from dg_lsp.training.blocks import block_mask
from dg_lsp.training.documents import Documents
from dg_lsp.training.objective import tensors
from dg_lsp.training.rows import Rows
from dg_lsp.training.store import load_store

HEADS, GROUPS, WIDTH = 4, 2, 16


def naive_mask(b):
    """(R, 1, n, n) bool: the rule of attention.py's first paragraph, in loops."""
    rows, clean = b["tokens"].shape
    canvases, slots = b["truth"].shape[1:]
    seen = torch.zeros(rows, clean + canvases * slots, clean + canvases * slots, dtype=torch.bool)
    for r in range(rows):
        document = b["document"][r].tolist()
        for q in range(clean):
            for k in range(q + 1):
                seen[r, q, k] = document[q] == document[k]
        for c in range(canvases):
            start, low, length = (int(b[name][r, c]) for name in ("start", "low", "length"))
            first = clean + c * slots
            seen[r, first : first + slots, low:start] = True
            seen[r, first : first + slots, first : first + length] = True
    return seen[:, None]


@pytest.fixture(scope="module")
def case(toy):
    config = toy.config.rows
    documents = Documents(load_store(toy.root / "train"), toy.tokenizer, config.max_prompt, config.max_middle, 3)
    b = tensors(Rows(documents, config).batch(), torch.device("cpu"))
    b["length"][0, 1] = b["start"][0, 1] = b["low"][0, 1] = 0  # an empty canvas
    generator = torch.Generator().manual_seed(0)
    n = b["tokens"].shape[1] + b["truth"][0].numel()
    q = torch.randn(len(b["tokens"]), HEADS, n, WIDTH, generator=generator)
    k, v = (torch.randn(len(b["tokens"]), GROUPS, n, WIDTH, generator=generator) for _ in range(2))
    expected = attend(q, k, v, naive_mask(b))
    matters = naive_mask(b).any(-1).expand(-1, HEADS, -1)
    return b, q, k, v, expected, matters


def rule(b):
    return b["document"], b["start"], b["low"], b["length"], b["truth"].shape[2]


def test_dense_products(case):
    b, q, k, v, expected, matters = case
    got = attend(q, k, v, visible(*rule(b)))
    assert got.isfinite().all()
    torch.testing.assert_close(got[matters], expected[matters], rtol=1e-4, atol=1e-5)


def test_clean_slots_alone(case):
    """A row without noisy slots gives what its clean slots give beside them."""
    b, q, k, v, expected, _ = case
    n = b["tokens"].shape[1]
    got = attend(q[:, :, :n], k[:, :, :n], v[:, :, :n], visible(*rule(b)))
    torch.testing.assert_close(got, expected[:, :, :n], rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore::UserWarning")  # flex_attention warns that it is not compiled here
@torch.no_grad()
def test_flex_attention(case):
    b, q, k, v, expected, matters = case
    got = attend(q, k, v, block_mask(*rule(b)))
    torch.testing.assert_close(got[matters], expected[matters], rtol=1e-4, atol=1e-5)


def test_blocks_cover_what_is_seen_and_full_ones_see_everything(case):
    b = case[0]
    mask = block_mask(*rule(b))
    seen = naive_mask(b)[:, 0]
    rows, n = len(seen), seen.shape[1] // 128
    tiles = seen.view(rows, n, 128, n, 128)
    full = torch.zeros(rows, n, n, dtype=torch.bool)
    for r in range(rows):
        for q in range(n):
            full[r, q, mask.full_kv_indices[r, 0, q, : mask.full_kv_num_blocks[r, 0, q]].long()] = True
    visited = mask.to_dense()[:, 0].bool()
    assert (tiles.any(4).any(2) & ~visited).sum() == 0
    assert (full & ~tiles.all(4).all(2)).sum() == 0
    assert visited.sum() < 0.75 * visited.numel()


def test_gradients_flow_only_to_what_is_seen(case):
    b, q, k, v, _, _ = case
    q = q.clone().requires_grad_()
    v = v.clone().requires_grad_()
    out = attend(q, k, v, visible(*rule(b)))
    n, slots = b["tokens"].shape[1], b["truth"].shape[2]
    out[0, :, n : n + slots].sum().backward()
    seen = naive_mask(b)[0, 0, n : n + slots].any(0)
    assert (v.grad[0].abs().sum((0, 2)) > 0).equal(seen)
    assert q.grad.isfinite().all()
