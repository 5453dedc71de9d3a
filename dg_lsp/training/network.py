"""A qwen3-shaped transformer over a clean and a noisy stream. llama.cpp runs its weights as architecture `qwen3`."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dg_lsp.training.attention import Mask, attend
from dg_lsp.training.config import NetworkConfig


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions in NeoX order: halves, not pairs. x (R, H, n, d); cos, sin (R, 1, n, d / 2)."""
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Block(nn.Module):
    """Attention and a gated feed-forward layer, both after an RMS norm."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        c = self.config = config
        self.attn_norm, self.ffn_norm = nn.RMSNorm(c.width, c.norm_eps), nn.RMSNorm(c.width, c.norm_eps)
        self.q_norm, self.k_norm = nn.RMSNorm(c.head_width, c.norm_eps), nn.RMSNorm(c.head_width, c.norm_eps)
        self.q = nn.Linear(c.width, c.heads * c.head_width, bias=False)
        self.k = nn.Linear(c.width, c.kv_heads * c.head_width, bias=False)
        self.v = nn.Linear(c.width, c.kv_heads * c.head_width, bias=False)
        self.output = nn.Linear(c.heads * c.head_width, c.width, bias=False)
        self.gate = nn.Linear(c.width, c.hidden, bias=False)
        self.up = nn.Linear(c.width, c.hidden, bias=False)
        self.down = nn.Linear(c.hidden, c.width, bias=False)

    def forward(self, h: Tensor, cos: Tensor, sin: Tensor, mask: Mask) -> Tensor:
        """h (R, n, width) -> the same shape."""
        rows, n, _ = h.shape
        c, x = self.config, self.attn_norm(h)
        v = self.v(x).view(rows, n, c.kv_heads, c.head_width).transpose(1, 2)
        q = self._rotated(self.q_norm, self.q(x).view(rows, n, c.heads, c.head_width), cos, sin).to(v.dtype)
        k = self._rotated(self.k_norm, self.k(x).view(rows, n, c.kv_heads, c.head_width), cos, sin).to(v.dtype)
        h = h + self.output(attend(q, k, v, mask).transpose(1, 2).reshape(rows, n, -1))
        x = self.ffn_norm(h)
        return h + self.down(F.silu(self.gate(x)) * self.up(x))

    @staticmethod
    def _rotated(norm: nn.RMSNorm, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x (R, n, H, d) -> (R, H, n, d) in float32, as the norm's weight is: mixed types leave torch's fused path."""
        return rotate(norm(x.float()).transpose(1, 2), cos, sin)


class Network(nn.Module):
    """Embedding, blocks, norm; the output layer is the embedding."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.num_tokens, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.width, config.norm_eps)
        self._initialise()

    def _initialise(self) -> None:
        """Unit variance through every layer; what writes to the residual stream is scaled down by its depth."""
        depth = (2 * self.config.layers) ** -0.5
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                writes = name.endswith(("output.weight", "down.weight"))
                scale = 0.02 if "embedding" in name else weight.shape[1] ** -0.5 * (depth if writes else 1.0)
                nn.init.normal_(weight, 0.0, scale)

    def hidden(self, ids: Tensor, position: Tensor, mask: Mask) -> Tensor:
        """ids, position (R, n) -> (R, n, width), normed."""
        half = torch.arange(0, self.config.head_width, 2, device=ids.device).float() / self.config.head_width
        angle = position[..., None].float() * self.config.rope_theta**-half
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]
        h = self.embedding(ids)
        for block in self.blocks:
            h = block(h, cos, sin, mask)
        return self.norm(h)

    def logits(self, h: Tensor) -> Tensor:
        """h (..., width) -> (..., num_tokens)."""
        return F.linear(h, self.embedding.weight)
