"""The mask rule of attention.py for FlexAttention: which tiles of 128 x 128 slots hold anything to see.

Worked out from the canvases and documents themselves; nothing of the size (slots x slots) is ever built.
"""

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

TILE = 128


def block_mask(document: Tensor, start: Tensor, low: Tensor, length: Tensor, slots: int) -> BlockMask:
    """The rule over T clean and C * L noisy slots, in this order; shapes as in `rows.Batch`.

    Raises:
        ValueError: T or C * L is no multiple of the tile, or a canvas would lie in two tiles.
    """
    clean, noisy = document.shape[1], start.shape[1] * slots
    if clean % TILE or noisy % TILE or TILE % slots:
        raise ValueError(f"{clean} clean and {noisy} noisy slots in canvases of {slots} do not fill tiles of {TILE}")

    def rule(r: Tensor, _: Tensor, q: Tensor, k: Tensor) -> Tensor:
        q_clean, k_clean = q.clamp(max=clean - 1), k.clamp(max=clean - 1)
        q_canvas, k_canvas = (q - clean).clamp(min=0) // slots, (k - clean).clamp(min=0) // slots
        causal = (document[r, q_clean] == document[r, k_clean]) & (q >= k)
        before = (k < start[r, q_canvas]) & (k >= low[r, q_canvas])
        own = (q_canvas == k_canvas) & ((k - clean) % slots < length[r, k_canvas])
        return torch.where(q >= clean, torch.where(k >= clean, own, before), (k < clean) & causal)

    some, full = _tiles(document, start, low, noisy)
    partial = some & ~full
    return BlockMask.from_kv_blocks(*_indexed(partial), *_indexed(full), BLOCK_SIZE=TILE, mask_mod=rule)


def _tiles(document: Tensor, start: Tensor, low: Tensor, noisy: int) -> tuple[Tensor, Tensor]:
    """(rows, tiles, tiles) bool twice: tiles that may hold something to see, and tiles that are seen whole."""
    rows, clean = document.shape
    first = torch.arange(0, clean, TILE, device=document.device)
    n, m = clean // TILE, noisy // TILE
    some = torch.zeros(rows, n + m, n + m, dtype=torch.bool, device=document.device)
    full = torch.zeros_like(some)
    # documents ascend along a row, padding (-1) comes last
    ordered = document.masked_fill(document < 0, torch.iinfo(document.dtype).max).view(rows, n, TILE)
    lowest, highest = ordered.amin(-1), ordered.amax(-1)
    below = first[:, None] >= first
    some[:, :n, :n] = below & (highest[:, None, :] >= lowest[:, :, None])
    full[:, :n, :n] = (first[:, None] > first) & (lowest[:, None, :] == highest[:, :, None])
    overlaps = (low[..., None] < first + TILE) & (start[..., None] > first)  # (R, C, n)
    covers = (low[..., None] <= first) & (start[..., None] >= first + TILE)
    some[:, n:, :n] = overlaps.view(rows, m, -1, n).any(2)
    full[:, n:, :n] = covers.view(rows, m, -1, n).all(2)
    some[:, n:, n:] = torch.eye(m, dtype=torch.bool, device=document.device)
    return some, full


def _indexed(tiles: Tensor) -> tuple[Tensor, Tensor]:
    """FlexAttention's form: how many tiles each row of tiles visits, and which, those first."""
    counts = tiles.sum(-1, dtype=torch.int32)
    order = tiles.int().sort(dim=-1, descending=True, stable=True).indices.int()
    return counts[:, None], order[:, None]
