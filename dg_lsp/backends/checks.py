"""Checks of requests that all backends share. No bad id reaches native code."""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dg_lsp.canvas.layout import TokenIds
from dg_lsp.errors import RequestError


def checked_ids(what: str, ids: npt.ArrayLike, vocab_size: int) -> TokenIds:
    """The ids as a contiguous int32 array of shape (N,).

    Raises:
        RequestError: not a flat array of integers, or an id outside `[0, vocab_size)`.
    """
    array = np.asarray(ids)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise RequestError(f"{what}: expected a flat list of token ids, got {array.dtype} of shape {array.shape}")
    # an id beyond the embedding table makes ggml abort the process; checked before any cast
    if array.size and not (array.min() >= 0 and array.max() < vocab_size):
        bad = int(array.min()) if int(array.min()) < 0 else int(array.max())
        raise RequestError(f"{what}: token id {bad} is outside the vocabulary of {vocab_size}")
    return np.ascontiguousarray(array, dtype=np.int32)


def check_slot(slot: int, num_slots: int) -> None:
    """Refuses a slot that does not exist."""
    if not 0 <= slot < num_slots:
        raise RequestError(f"slot {slot} does not exist: slots are numbered 0 to {num_slots - 1}")


def check_prompt_length(length: int, limit: int) -> None:
    """Refuses a prompt that leaves no room for a canvas in the context."""
    if length > limit:
        raise RequestError(
            f"the prompt has {length} tokens, the context takes {limit}; shorten it or raise context_length"
        )


def checked_extension(ids: npt.ArrayLike, vocab_size: int, limit: int) -> TokenIds:
    """The ids of one causal pass.

    Raises:
        RequestError: there are none, too many for one pass, or ids out of range.
    """
    checked = checked_ids("extension", ids, vocab_size)
    if not 0 < len(checked) <= limit:
        raise RequestError(f"a causal pass takes 1 to {limit} tokens, not {len(checked)}")
    return checked


def checked_canvases(
    canvases: Sequence[npt.ArrayLike], vocab_size: int, *, max_canvases: int, max_canvas_tokens: int
) -> list[TokenIds]:
    """The canvases of one forward pass, as int32 arrays.

    Raises:
        RequestError: there are none, too many, an empty one, too many tokens for one pass, or ids out of range.
    """
    if not 0 < len(canvases) <= max_canvases:
        raise RequestError(f"a step takes 1 to {max_canvases} canvases, not {len(canvases)}")
    checked = [checked_ids(f"canvas {number}", canvas, vocab_size) for number, canvas in enumerate(canvases)]
    if not all(len(canvas) for canvas in checked):
        raise RequestError("a canvas needs at least one token")
    if (total := sum(map(len, checked))) > max_canvas_tokens:
        raise RequestError(f"the canvases of one step have {total} tokens together, at most {max_canvas_tokens} fit")
    return checked


def check_temperature(temperature: float) -> None:
    """Refuses a negative or infinite temperature."""
    if not (math.isfinite(temperature) and temperature >= 0):
        raise RequestError(f"temperature {temperature} is not a number of at least 0")
