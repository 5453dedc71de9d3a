"""Matrices in 8 bits: half the bytes of bfloat16, and bytes are what a step's time is made of.

Every row of a matrix is stored as e4m3 with a scale of its own, every row of an activation is rounded the same way when
it is multiplied, sums stay wide. Embedding, norms and routers stay as they are. transformers' own on-the-fly formats
skip all tied weights of this model, which are all of its matrices (5.23), so it is done here.
"""

from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

E4M3 = torch.float8_e4m3fn
LARGEST = float(torch.finfo(E4M3).max)
SMALLEST_SCALE = 1e-12
_HAS_TRITON = find_spec("triton") is not None


def rounded_rows(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of shape (..., N, K) in e4m3, and their scales of shape (..., N, 1) in float32."""
    scales = (matrix.abs().amax(dim=-1, keepdim=True).float() / LARGEST).clamp_(min=SMALLEST_SCALE)
    return (matrix.float() / scales).clamp_(-LARGEST, LARGEST).to(E4M3), scales


def _rounded(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Activations of shape (N, K), by one kernel where there is one."""
    if not (rows.is_cuda and _HAS_TRITON):
        return rounded_rows(rows)
    from dg_lsp.backends.hf import rows as kernels

    return kernels.rounded_rows(rows)


class Float8Linear(nn.Module):
    """In place of a linear layer without bias."""

    def __init__(self, linear: nn.Linear, device: torch.device) -> None:
        super().__init__()
        weight, scales = rounded_rows(linear.weight.data.to(device))
        self.weight = nn.Buffer(weight)
        self.scales = nn.Buffer(scales.T.contiguous())

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """As the layer: (..., K) to (..., N)."""
        flat, scales = _rounded(rows.reshape(-1, rows.shape[-1]))
        if flat.is_cuda:
            out = torch._scaled_mm(flat, self.weight.T, scales, self.scales, out_dtype=rows.dtype)  # noqa: SLF001
        else:
            out = ((flat.float() @ self.weight.float().T) * scales * self.scales).to(rows.dtype)
        return out.view(*rows.shape[:-1], -1)


class Float8Experts(nn.Module):
    """In place of transformers' experts: the same grouping by expert, multiplied in 8 bits."""

    def __init__(self, experts: Any, device: torch.device) -> None:
        super().__init__()
        for name in ("gate_up_proj", "down_proj"):
            weight, scales = rounded_rows(getattr(experts, name).data.to(device))
            self.register_buffer(name, weight)
            self.register_buffer(f"{name}_scales", scales[..., 0].contiguous())
        self.act_fn = experts.act_fn
        self._num_experts = int(experts.num_experts)

    def forward(self, rows: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor) -> torch.Tensor:
        """(T, hidden) by the experts that each row is routed to, added up by weight."""
        experts, order = top_k_index.reshape(-1).sort()
        counts = torch.histc(experts.float(), bins=self._num_experts, min=0, max=self._num_experts - 1)
        stops = counts.cumsum(0).to(torch.int32)
        hidden = self._grouped(rows[order // top_k_index.shape[-1]], "gate_up_proj", stops)
        gate, up = hidden.chunk(2, dim=-1)
        found = self._grouped(self.act_fn(gate) * up, "down_proj", stops) * top_k_weights.reshape(-1)[order, None]
        back = torch.empty_like(found).index_copy_(0, order, found)
        return back.view(*top_k_index.shape, -1).sum(dim=1).to(rows.dtype)

    def _grouped(self, rows: torch.Tensor, name: str, stops: torch.Tensor) -> torch.Tensor:
        """Sorted rows, each by its expert's matrix; `stops` is where each expert's rows end."""
        weight, weight_scales = getattr(self, name), getattr(self, f"{name}_scales")
        flat, scales = _rounded(rows)
        if flat.is_cuda:
            return torch._scaled_grouped_mm(  # noqa: SLF001
                flat, weight.transpose(-2, -1), scales[:, 0], weight_scales, offs=stops, out_dtype=rows.dtype
            )
        out = rows.new_zeros((len(rows), weight.shape[1]))
        for expert, (start, stop) in enumerate(zip([0, *stops.tolist()], stops.tolist(), strict=False)):
            wide = flat[start:stop].float() @ weight[expert].float().T
            out[start:stop] = (wide * scales[start:stop] * weight_scales[expert]).to(rows.dtype)
        return out


def squeeze(model: Any, device: torch.device) -> None:
    """Replaces all matrices of both halves but the embedding, one layer at a time, and moves the rest to the device.

    The halves share them, so each is made once.
    """
    encoder, decoder = model.model.encoder.language_model, model.model.decoder
    for ours, theirs in zip(decoder.layers, encoder.layers, strict=True):
        for path in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"):
            _replace(ours, theirs, path, device)
        for path in ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"):
            _replace(ours, theirs, path, device)
        ours.experts = theirs.experts = Float8Experts(ours.experts, device)
    for path in ("gate_proj", "up_proj", "down_proj"):
        _replace(decoder.self_conditioning, None, path, device)
    model.to(device)


def _replace(ours: nn.Module, theirs: nn.Module | None, path: str, device: torch.device) -> None:
    linear = ours.get_submodule(path) if _has(ours, path) else None
    if linear is None:  # full-attention layers have no values of their own
        return
    squeezed = Float8Linear(linear, device)
    for module in (ours, theirs):
        if module is not None:
            module.set_submodule(path, squeezed)


def _has(module: nn.Module, path: str) -> bool:
    parent, _, name = path.rpartition(".")
    return getattr(module.get_submodule(parent), name, None) is not None
