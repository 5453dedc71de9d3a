"""The transformers that `adapt` trains, over clean tokens and canvases.

llama.cpp runs its weights; they have the tensor names of a GGUF file, except that rotated heads are always in NeoX
order (`pretrained` converts those of llama).

Attention rule: a clean token sees the clean tokens of its document up to itself. A canvas position sees the clean
tokens of its document before the canvas, [context_start, start), and every used position of its own canvas.

The rule has two forms: `DenseMask` for a CPU (canvases are compared with the clean tokens and themselves, never with
each other), and `BlockMask` for CUDA (FlexAttention, which has no backward pass on a CPU in torch 2.13).
"""

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

PADDED = 64  # tokens


@dataclass(frozen=True, slots=True)
class NetworkConfig:
    """Shape of a network."""

    width: int
    layers: int
    heads: int
    kv_heads: int
    hidden: int  # of the gated feed-forward layer
    head_width: int
    num_tokens: int
    rope_theta: float
    norm_eps: float
    architecture: str  # llama.cpp's: llama, qwen2 or qwen3
    is_tied: bool  # the output layer is the embedding
    rope_factors: tuple[float, ...] = ()
    """Divisors of the frequencies, half a head of them; empty: all 1."""

    @property
    def has_bias(self) -> bool:
        """Queries, keys and values have a bias."""
        return self.architecture == "qwen2"

    @property
    def has_head_norms(self) -> bool:
        """Queries and keys are normalized."""
        return self.architecture == "qwen3"


class DenseMask(NamedTuple):
    """The documents among the clean tokens, and what is added to the scores of canvases: 0 where a key is visible,
    -inf elsewhere.

    A CPU adds faster than it fills by a bool mask, forward and backward. Documents are attended to one by one, which
    costs a quarter of all pairs in a row.
    """

    documents: tuple[tuple[int, int, int], ...]  # row, first token, end
    context: Tensor  # (R, 1, C, 1, T): the clean keys of a canvas
    canvas: Tensor  # (R, 1, C, L): its own positions


Mask: TypeAlias = DenseMask | BlockMask


def dense_mask(document: Tensor, start: Tensor, context_start: Tensor, length: Tensor, canvas_length: int) -> DenseMask:
    """The attention rule for a CPU; shapes as in `rows.TrainingBatch`."""
    at = torch.arange(document.shape[1], device=document.device)
    inside = torch.arange(canvas_length, device=document.device)
    context = ((at < start[:, :, None]) & (at >= context_start[:, :, None]))[:, :, None]
    # an empty canvas sees its first position, so that its scores are finite; it has no target
    canvas = inside < length[:, :, None].clamp(min=1)
    return DenseMask(_spans(document), *(_additive(visible[:, None]) for visible in (context, canvas)))


def _spans(document: Tensor) -> tuple[tuple[int, int, int], ...]:
    """Row, first token and end of each run of one number that is not negative; document (R, T)."""
    spans = []
    for row, numbers in enumerate(document):
        values, lengths = torch.unique_consecutive(numbers, return_counts=True)
        ends = lengths.cumsum(0).tolist()
        starts = [0, *ends[:-1]]
        spans += [(row, a, b) for value, a, b in zip(values.tolist(), starts, ends, strict=True) if value >= 0]
    return tuple(spans)


def _additive(visible: Tensor) -> Tensor:
    """0 where visible, -inf elsewhere, in the type of the matrix products."""
    kind = visible.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else torch.float32
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, float("-inf"))


def block_mask(document: Tensor, start: Tensor, context_start: Tensor, length: Tensor, canvas_length: int) -> BlockMask:
    """The attention rule for CUDA over T clean tokens and C * L canvas positions, in this order."""
    rows, clean = document.shape
    num = clean + start.shape[1] * canvas_length

    def rule(r: Tensor, _: Tensor, q: Tensor, k: Tensor) -> Tensor:
        q_clean, k_clean = q.clamp(max=clean - 1), k.clamp(max=clean - 1)
        q_canvas, k_canvas = (q - clean).clamp(min=0) // canvas_length, (k - clean).clamp(min=0) // canvas_length
        causal = (document[r, q_clean] == document[r, k_clean]) & (q >= k)
        context = (k < start[r, q_canvas]) & (k >= context_start[r, q_canvas])
        own = (q_canvas == k_canvas) & ((k - clean) % canvas_length < length[r, k_canvas])
        return torch.where(q >= clean, torch.where(k >= clean, own, context), (k < clean) & causal)

    return create_block_mask(rule, rows, None, num, num, device=document.device)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
    """Attention of q (R, H, n, d) over k, v (R, G, n, d), H a multiple of G; returns (R, H, n, d)."""
    if isinstance(mask, BlockMask):
        return cast(Tensor, flex_attention(q, k, v, block_mask=mask, enable_gqa=True))
    clean = mask.context.shape[-1]
    out = _attend_documents(q[:, :, :clean], k[:, :, :clean], v[:, :, :clean], mask)
    return out if q.shape[2] == clean else torch.cat([out, _attend_canvases(q, k, v, mask)], 2)


def _attend_documents(q: Tensor, k: Tensor, v: Tensor, mask: DenseMask) -> Tensor:
    """Causal attention inside each document; padding gets 0."""
    rows: list[list[Tensor]] = [[] for _ in q]
    for row, start, end in mask.documents:
        here = (row, slice(None), slice(start, end))
        rows[row].append(_attend_causally(q[here], k[here], v[here]))
    joined = [torch.cat(parts, 1) for parts in rows]
    return torch.stack([F.pad(row, (0, 0, 0, q.shape[2] - row.shape[1])) for row in joined])


def _attend_causally(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """One document, q (H, n, d) over k, v (G, n, d), in dense products: the backward pass of torch's fused attention
    takes two to three times as long on a CPU. Lengths are multiples of `PADDED`, because oneDNN compiles a kernel for
    each new length."""
    length = q.shape[1]
    q, k, v = (F.pad(x, (0, 0, 0, -length % PADDED)) for x in (q, k, v))
    heads, n, d = q.shape
    scores = (q * d**-0.5).reshape(len(k), -1, d) @ k.transpose(-1, -2)  # the heads of a group share its keys
    future = scores.new_full((n, n), float("-inf")).triu(1)
    weights = (scores.view(len(k), -1, n, n) + future).softmax(-1)
    return (weights.to(v.dtype).view(len(k), -1, n) @ v).view(heads, n, d)[:, :length]


def _attend_canvases(q: Tensor, k: Tensor, v: Tensor, mask: DenseMask) -> Tensor:
    rows, heads, _, d = q.shape
    groups = k.shape[1]
    clean = mask.context.shape[-1]
    canvases, length = mask.canvas.shape[2:]
    share = heads // groups
    q = (q[:, :, clean:] * d**-0.5).reshape(rows, groups, share * canvases * length, d)
    own_q = q.view(rows, groups, share, canvases, length, d)
    own_k = k[:, :, clean:].reshape(rows, groups, 1, canvases, length, d)
    own_v = v[:, :, clean:].reshape(rows, groups, 1, canvases, length, d)
    context = (q @ k[:, :, :clean].transpose(-1, -2)).view(rows, groups, share, canvases, length, clean)
    own = own_q @ own_k.transpose(-1, -2)  # (R, G, H/G, C, L, L)
    scores = torch.cat([context + mask.context[:, :, None], own + mask.canvas[:, :, None, :, None]], -1)
    weights = scores.float().softmax(-1).to(v.dtype)
    from_context = weights[..., :clean].reshape(rows, groups, -1, clean) @ v[:, :, :clean]
    from_canvas = weights[..., clean:] @ own_v.expand(-1, -1, share, -1, -1, -1)
    return from_context.view(rows, heads, -1, d) + from_canvas.reshape(rows, heads, -1, d)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions in NeoX order: halves, not pairs. x (R, H, n, d); cos, sin (R, 1, n, d / 2)."""
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Block(nn.Module):
    """Attention and a gated feed-forward layer, each after an RMS norm."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        c = self.config = config
        self.attn_norm = nn.RMSNorm(c.width, c.norm_eps)
        self.ffn_norm = nn.RMSNorm(c.width, c.norm_eps)
        self.attn_q_norm = nn.RMSNorm(c.head_width, c.norm_eps) if c.has_head_norms else None
        self.attn_k_norm = nn.RMSNorm(c.head_width, c.norm_eps) if c.has_head_norms else None
        self.attn_q = nn.Linear(c.width, c.heads * c.head_width, bias=c.has_bias)
        self.attn_k = nn.Linear(c.width, c.kv_heads * c.head_width, bias=c.has_bias)
        self.attn_v = nn.Linear(c.width, c.kv_heads * c.head_width, bias=c.has_bias)
        self.attn_output = nn.Linear(c.heads * c.head_width, c.width, bias=False)
        self.ffn_gate = nn.Linear(c.width, c.hidden, bias=False)
        self.ffn_up = nn.Linear(c.width, c.hidden, bias=False)
        self.ffn_down = nn.Linear(c.hidden, c.width, bias=False)

    def forward(self, h: Tensor, cos: Tensor, sin: Tensor, mask: Mask) -> Tensor:
        """h (R, n, width) -> the same shape."""
        rows, n, _ = h.shape
        c = self.config
        x = self.attn_norm(h)
        q, k, v = (f(x).view(rows, n, -1, c.head_width) for f in (self.attn_q, self.attn_k, self.attn_v))
        if self.attn_q_norm is not None and self.attn_k_norm is not None:
            # float32 like the weights of the norms: mixed types leave torch's fused path
            q, k = self.attn_q_norm(q.float()), self.attn_k_norm(k.float())
        q, k = (rotate(x.transpose(1, 2), cos, sin).to(v.dtype) for x in (q, k))
        h = h + self.attn_output(attend(q, k, v.transpose(1, 2), mask).transpose(1, 2).reshape(rows, n, -1))
        x = self.ffn_norm(h)
        return h + self.ffn_down(F.silu(self.ffn_gate(x)) * self.ffn_up(x))


class DiffusionNetwork(nn.Module):
    """Embedding, blocks, norm, and the output layer, which may be the embedding."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = config
        self.token_embd = nn.Embedding(config.num_tokens, config.width)
        self.blk = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.output_norm = nn.RMSNorm(config.width, config.norm_eps)
        self.output = None if config.is_tied else nn.Linear(config.width, config.num_tokens, bias=False)

    @property
    def output_weight(self) -> Tensor:
        """The matrix of the output layer, (num_tokens, width)."""
        return self.token_embd.weight if self.output is None else self.output.weight

    def hidden(self, ids: Tensor, position: Tensor, mask: Mask) -> Tensor:
        """Normalized hidden states (R, n, width) of ids and positions (R, n)."""
        cos, sin = self._rotation(position)
        h = self.token_embd(ids)
        for block in self.blk:
            h = block(h, cos, sin, mask)
        return self.output_norm(h)

    def _rotation(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine of the rotary angles, (R, 1, n, head_width / 2) each."""
        config = self.config
        exponent = torch.arange(0, config.head_width, 2, device=position.device).float() / config.head_width
        frequency = config.rope_theta**-exponent
        if config.rope_factors:
            frequency = frequency / torch.tensor(config.rope_factors, device=position.device)
        angle = position[..., None].float() * frequency
        return angle.cos()[:, None], angle.sin()[:, None]
