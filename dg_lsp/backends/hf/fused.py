"""`reduce` for a GPU: logits are read once, and everything about a position comes out. Needs Triton.

Cap, ban, temperature, maximum, sum, entropy and a draw in one pass over (T, vocabulary), in pieces so that a few rows
occupy the whole device; then the pieces are put together, and a second pass writes the probabilities that
self-conditioning multiplies with the embedding. torch takes about ten passes for the same.
"""

import torch
import triton
import triton.language as tl

from dg_lsp.backends.hf.reduce import Sampled

_BLOCK = 4096
_NEVER = tl.constexpr(-1e30)
"""Below any logit, and finite: infinity less infinity would be no number."""


def reduce(
    raw: torch.Tensor, cap: float, banned_ids: torch.Tensor, temperature: torch.Tensor, chances: torch.Tensor
) -> Sampled:
    """As `reduce.reduce`; each position's `chance` seeds its draw (Gumbel noise) instead of being looked up."""
    length, vocab_size = raw.shape
    num_pieces = triton.cdiv(vocab_size, _BLOCK)
    raw = raw.contiguous()
    is_banned = torch.zeros(vocab_size, dtype=torch.int8, device=raw.device).index_fill_(0, banned_ids, 1)
    floats = torch.empty((5, length, num_pieces), dtype=torch.float32, device=raw.device)
    tokens = torch.empty((2, length, num_pieces), dtype=torch.int32, device=raw.device)
    rows = torch.empty((4, length), dtype=torch.float32, device=raw.device)
    scales = torch.empty((2, length), dtype=torch.float32, device=raw.device)
    weights = torch.empty_like(raw)
    grid = (length, num_pieces)
    _read[grid](raw, is_banned, temperature, chances, floats, tokens, vocab_size, cap, length * num_pieces, _BLOCK)
    _join[(length,)](floats, tokens, weights, rows, scales, num_pieces, length, triton.next_power_of_2(num_pieces))
    _weigh[grid](raw, is_banned, temperature, scales, weights, vocab_size, cap, length, _BLOCK)
    return Sampled(rows, weights)


@triton.jit
def _tempered(raw, is_banned, temperature, place, columns, vocab_size, cap):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Capped, banned and tempered logits at `columns` of a row that begins at `place`."""
    inside = columns < vocab_size
    logits = tl.load(raw + place + columns, mask=inside, other=0.0).to(tl.float32)
    logits = cap * (2.0 * tl.sigmoid(2.0 * logits / cap) - 1.0)  # tanh
    allowed = inside & (tl.load(is_banned + columns, mask=inside, other=1) == 0)
    return tl.where(allowed, logits / tl.load(temperature), _NEVER)


@triton.jit
def _read(raw, is_banned, temperature, chances, floats, tokens, vocab_size, cap, size, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202, N803
    """One piece of one row: maximum and where, sums below it, the best of the noisy logits and where."""
    row, piece = tl.program_id(0), tl.program_id(1)
    columns = piece * BLOCK + tl.arange(0, BLOCK)
    logits = _tempered(raw, is_banned, temperature, row * vocab_size, columns, vocab_size, cap)
    highest, best = tl.max(logits, axis=0, return_indices=True)
    below = logits - highest
    weights = tl.exp(below)
    rounded = logits.to(raw.dtype.element_ty).to(tl.float32)
    highest_rounded = highest.to(raw.dtype.element_ty).to(tl.float32)
    seed = (tl.load(chances + row) * 16777216.0).to(tl.int32)
    noise = -tl.log(-tl.log(tl.rand(seed, columns)))
    luckiest, drawn = tl.max(tl.where(logits > _NEVER, logits + noise, _NEVER), axis=0, return_indices=True)
    place = row * tl.num_programs(1) + piece
    tl.store(floats + place, highest)
    tl.store(floats + size + place, tl.sum(weights, axis=0))
    tl.store(floats + 2 * size + place, tl.sum(weights * below, axis=0))
    tl.store(floats + 3 * size + place, tl.sum(tl.exp(rounded - highest_rounded), axis=0))
    tl.store(floats + 4 * size + place, luckiest)
    tl.store(tokens + place, piece * BLOCK + best)
    tl.store(tokens + size + place, piece * BLOCK + drawn)


@triton.jit
def _join(floats, tokens, weights, rows, scales, num_pieces, length, PIECES: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202, N803
    """The pieces of one row."""
    row = tl.program_id(0)
    size = length * num_pieces
    pieces = tl.arange(0, PIECES)
    inside = pieces < num_pieces
    places = row * num_pieces + pieces
    highest = tl.load(floats + places, mask=inside, other=_NEVER)
    top, winner = tl.max(highest, axis=0, return_indices=True)
    scale = tl.exp(highest - top)
    sums = tl.load(floats + size + places, mask=inside, other=0.0)
    moments = tl.load(floats + 2 * size + places, mask=inside, other=0.0)
    total = tl.sum(sums * scale, axis=0)
    # the mean of what lies below the very top: pieces lie below it together
    mean = tl.sum(scale * (moments + sums * tl.where(scale > 0, highest - top, 0.0)), axis=0) / total
    _, lucky = tl.max(tl.load(floats + 4 * size + places, mask=inside, other=_NEVER), axis=0, return_indices=True)
    tl.store(rows + row, tl.load(tokens + row * num_pieces + winner).to(tl.float32))
    tl.store(rows + length + row, tl.load(tokens + size + row * num_pieces + lucky).to(tl.float32))
    tl.store(rows + 2 * length + row, 1.0 / total)
    tl.store(rows + 3 * length + row, tl.maximum(tl.log(total) - mean, 0.0))
    top_rounded = top.to(weights.dtype.element_ty).to(tl.float32)
    rounded = highest.to(weights.dtype.element_ty).to(tl.float32)
    sums_rounded = tl.load(floats + 3 * size + places, mask=inside, other=0.0)
    tl.store(scales + row, top_rounded)
    tl.store(scales + length + row, tl.sum(sums_rounded * tl.exp(rounded - top_rounded), axis=0))


@triton.jit
def _weigh(raw, is_banned, temperature, scales, weights, vocab_size, cap, length, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202, N803
    """Probabilities of one piece of one row, of logits rounded to the embedding's type as the reference rounds them."""
    row, piece = tl.program_id(0), tl.program_id(1)
    columns = piece * BLOCK + tl.arange(0, BLOCK)
    logits = _tempered(raw, is_banned, temperature, row * vocab_size, columns, vocab_size, cap)
    rounded = logits.to(raw.dtype.element_ty).to(tl.float32)
    found = tl.exp(rounded - tl.load(scales + row)) / tl.load(scales + length + row)
    tl.store(weights + row * vocab_size + columns, found.to(weights.dtype.element_ty), mask=columns < vocab_size)
