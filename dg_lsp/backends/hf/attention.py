"""Attention of a canvas over a prompt: few queries, many keys, heads that share them.

transformers would copy every key and value head for each of its query heads first (16 for 2 in a full layer).
"""

from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "dg_lsp_canvas"


def canvas_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float = 1.0,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' interface: query (1, heads, T, width), key and value (1, key heads, N, width), mask (1, 1, T, N).

    The causal encoder has many queries, and keeps torch's own attention.
    """
    if module.is_causal or attention_mask is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **options)
    groups, (_, heads, length, width) = module.num_key_value_groups, query.shape
    rows = query.reshape(1, heads // groups, groups * length, width)
    scores = torch.matmul(rows, key.transpose(-1, -2)) * scaling
    scores = scores.view(1, heads // groups, groups, length, -1).masked_fill(~attention_mask[:, :, None], float("-inf"))
    weights = torch.softmax(scores, dim=-1, dtype=torch.promote_types(torch.float32, query.dtype)).to(query.dtype)
    seen = torch.matmul(weights.view(1, heads // groups, groups * length, -1), value)
    return seen.view(1, heads, length, width).transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, canvas_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
