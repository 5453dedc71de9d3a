"""One mask rule, three ways to compute it. Knows queries, keys and slots; no tokens.

The rule. A clean token sees the clean tokens of its document up to itself. A canvas slot sees the clean tokens of
its document before the canvas ([low, start)), and every used slot of its own canvas, in both directions.

* `Visible` (a CPU): canvases as a dense product over (clean keys + own slots); no slot is compared with another canvas.
* `BlockMask` (CUDA, see blocks.py): FlexAttention over clean and noisy slots together, without any dense mask.
* a plain bool tensor: the reference that tests and short sequences use.
FlexAttention has no backward on a CPU (torch 2.13), hence the first.
"""

from typing import NamedTuple, TypeAlias, cast

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.flex_attention import BlockMask, flex_attention


class Visible(NamedTuple):
    """What is added to scores, 0 or -inf.

    clean (R, 1, T, T); before (R, 1, C, T): the clean keys of a canvas; used (R, 1, C, L): its own slots.

    A sum costs a CPU half of what filling by a bool mask does, forward and backward.
    """

    clean: Tensor
    before: Tensor
    used: Tensor


Mask: TypeAlias = Visible | BlockMask | Tensor


def visible(document: Tensor, start: Tensor, low: Tensor, length: Tensor, slots: int) -> Visible:
    """The rule as dense masks per stream; shapes as in `rows.Batch`."""
    at = torch.arange(document.shape[1], device=document.device)
    same = (document[:, :, None] == document[:, None, :]) & (at[:, None] >= at[None, :])
    before = (at < start[:, :, None]) & (at >= low[:, :, None])
    # an empty canvas sees its first slot, so that its scores are finite; it has no target
    used = torch.arange(slots, device=document.device) < length[:, :, None].clamp(min=1)
    return Visible(_added(same[:, None]), _added(before[:, None]), _added(used[:, None]))


def _added(seen: Tensor) -> Tensor:
    """0 where seen, -inf elsewhere, in the type of the products."""
    kind = seen.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else torch.float32
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, float("-inf"))


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
    """Attention of q (R, H, n, d) over k, v (R, G, n, d), H a multiple of G; returns (R, H, n, d)."""
    if isinstance(mask, BlockMask):
        return cast(Tensor, flex_attention(q, k, v, block_mask=mask, enable_gqa=True))
    if isinstance(mask, Tensor):
        return F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)
    clean = mask.clean.shape[-1]
    context = _clean(q[:, :, :clean], k[:, :, :clean], v[:, :, :clean], mask.clean)
    if q.shape[2] == clean:
        return context
    return torch.cat([context, _canvases(q, k, v, mask)], 2)


def _clean(q: Tensor, k: Tensor, v: Tensor, added: Tensor) -> Tensor:
    """Masked attention as two products; queries of a group share their keys in one matrix product."""
    rows, heads, n, d = q.shape
    groups = k.shape[1]
    scores = (q * d**-0.5).reshape(rows, groups, -1, d) @ k.transpose(-1, -2)  # (R, G, H/G * n, n)
    scores = scores.view(rows, groups, -1, n, n) + added[:, :, None]
    # a padding slot sees the padding before it and itself: no row is empty
    weights = scores.float().softmax(-1).to(v.dtype).view(rows, groups, -1, n)
    return (weights @ v).view(rows, heads, n, d)


def _canvases(q: Tensor, k: Tensor, v: Tensor, mask: Visible) -> Tensor:
    rows, heads, _, d = q.shape
    groups, clean = k.shape[1], mask.clean.shape[-1]
    canvases, slots = mask.used.shape[2:]
    share = heads // groups
    q = (q[:, :, clean:] * d**-0.5).reshape(rows, groups, share * canvases * slots, d)
    own_q = q.view(rows, groups, share, canvases, slots, d)
    own_k = k[:, :, clean:].reshape(rows, groups, 1, canvases, slots, d)
    own_v = v[:, :, clean:].reshape(rows, groups, 1, canvases, slots, d)
    past = (q @ k[:, :, :clean].transpose(-1, -2)).view(rows, groups, share, canvases, slots, clean)
    own = own_q @ own_k.transpose(-1, -2)  # (R, G, H/G, C, L, L)
    scores = torch.cat([past + mask.before[:, :, None, :, None], own + mask.used[:, :, None, :, None]], -1)
    weights = scores.float().softmax(-1).to(v.dtype)
    seen = weights[..., :clean].reshape(rows, groups, -1, clean) @ v[:, :, :clean]
    mixed = weights[..., clean:] @ own_v.expand(-1, -1, share, -1, -1, -1)
    return seen.view(rows, heads, -1, d) + mixed.reshape(rows, heads, -1, d)
