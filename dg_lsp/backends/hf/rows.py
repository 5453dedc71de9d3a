"""What is done to every row of a layer, as one kernel each: RMS norms, and rounding to 8 bits. Needs Triton.

A layer has eleven norms, and torch takes about six kernels for one of them, each longer to start than to run.
"""

from types import MethodType
from typing import Any

import torch
import triton
import triton.language as tl

from dg_lsp.backends.hf.float8 import LARGEST, SMALLEST_SCALE


def fuse_norms(model: torch.nn.Module) -> int:
    """Has every RMS norm of a model computed by one kernel; returns how many there are."""
    norms = [module for module in model.modules() if type(module).__name__.endswith("RMSNorm")]
    for norm in norms:
        norm.forward = MethodType(_forward, norm)
    return len(norms)


def _forward(norm: Any, rows: torch.Tensor) -> torch.Tensor:
    """In place of the module's own, which computes in float32, too."""
    return rms_norm(rows, norm.weight if norm.with_scale else None, norm.eps)


def rms_norm(rows: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    """Rows of shape (..., width) by the root of their mean square, times a weight of shape (width,) if given."""
    width = rows.shape[-1]
    flat = rows.reshape(-1, width)
    out = torch.empty_like(flat)
    block = triton.next_power_of_2(width)
    has_weight = weight is not None
    _norm[(len(flat),)](
        flat, weight if has_weight else flat, out, flat.stride(0), width, eps, has_weight, block,
        num_warps=min(8, max(1, block // 256)),
    )  # fmt: skip
    return out.view(rows.shape)


@triton.jit
def _norm(rows, weight, out, stride, width, eps, HAS_WEIGHT: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202, N803
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    values = tl.load(rows + row * stride + columns, mask=inside, other=0.0).to(tl.float32)
    found = values * tl.rsqrt(tl.sum(values * values, axis=0) / width + eps)
    if HAS_WEIGHT:
        found = found * tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + columns, found.to(out.dtype.element_ty), mask=inside)


def rounded_rows(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """As `float8.rounded_rows`, for rows of shape (N, width) that lie one after the other."""
    length, width = rows.shape
    out = torch.empty((length, width), dtype=torch.float8_e4m3fn, device=rows.device)
    scales = torch.empty((length, 1), dtype=torch.float32, device=rows.device)
    block = triton.next_power_of_2(width)
    _round[(length,)](
        rows.contiguous(), out, scales, width, LARGEST, SMALLEST_SCALE, block,
        num_warps=min(8, max(1, block // 256)),
    )  # fmt: skip
    return out, scales


@triton.jit
def _round(rows, out, scales, width, largest, smallest, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202, N803
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    values = tl.load(rows + row * width + columns, mask=inside, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(values), axis=0) / largest, smallest)
    found = tl.minimum(tl.maximum(values / scale, -largest), largest)
    tl.store(out + row * width + columns, found.to(out.dtype.element_ty), mask=inside)
    tl.store(scales + row, scale)
