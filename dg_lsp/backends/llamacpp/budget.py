"""How large a context is made, and how large it may become: from the spec and the settings.

Whether there is memory for it, `need` says.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from dg_lsp.canvas.spec import ModelSpec
from dg_lsp.settings import RuntimeSettings

MAX_CANVASES = 8
"""Canvases of one step."""
_CACHE_BYTES = 1 << 30
"""Soft cap of an automatic KV cache: slots get fewer tokens of their own before it grows beyond."""
_LOGITS_BYTES = 256 << 20
"""Soft cap of a step's logits, which decides how many canvas tokens one step takes."""
FIRST_TOKENS = 2048
"""A slot's tokens at the beginning where it may get more: long prompts make room for themselves when they come."""
_UBATCH = 512
_PADDING = 256  # llama.cpp rounds a context up to this


@dataclass(frozen=True, slots=True)
class ContextBudget:
    """Sizes of one llama.cpp context, in tokens."""

    context_length: int
    """Cells of the KV cache that all slots share, at most."""
    first_length: int
    """Cells that it begins with."""
    slot_limit: int
    """Prompt and canvas of one slot together."""
    batch_tokens: int
    """Tokens of one physical batch: a non-causal batch must not be larger."""
    canvas_tokens: int
    """Tokens of all canvases of one step."""
    num_sequences: int
    """One for each slot, and one for each further canvas of a step."""
    longest_canvas: int

    @property
    def prompt_limit(self) -> int:
        """Longest prompt: what one slot may take less the longest canvas."""
        return max(0, self.slot_limit - self.longest_canvas)

    def larger(self, num_cells: int, num_missing: int) -> Iterator[int]:
        """Cells to try instead of so many when some are missing: twice as many, then no more than are needed."""
        enough = min(padded(num_cells + num_missing), self.context_length)
        if num_cells < enough:
            yield (roomy := min(max(enough, 2 * num_cells), self.context_length))
            if enough < roomy:
                yield enough


def context_budget(
    spec: ModelSpec,
    settings: RuntimeSettings,
    *,
    vocab_size: int,
    trained_length: int,
    kv_bytes_per_token: int,
) -> ContextBudget:
    """Sizes that hold the settings' slots in the end, and one of them at the beginning; a `context_length` that is
    set is made at once."""
    longest = spec.longest_block
    logits_limit = max(longest, _LOGITS_BYTES // (4 * vocab_size))
    canvas_tokens = min(max(256, 4 * longest), logits_limit)
    # Beyond the trained length positions mean nothing, and absolute ones are read past the end of their table.
    slot_limit = min(spec.max_prompt_tokens + 2 * longest, trained_length)
    wanted = settings.context_length
    if not wanted:
        shared = max(slot_limit + canvas_tokens, _CACHE_BYTES // max(1, kv_bytes_per_token))
        wanted = min(settings.num_slots * slot_limit + canvas_tokens, shared)
    else:
        slot_limit = min(wanted, trained_length)
    context_length = padded(wanted)
    first_length = padded(max(_UBATCH, min(slot_limit, FIRST_TOKENS) + canvas_tokens))
    batch_tokens = max(_UBATCH, canvas_tokens)
    if spec.is_bidirectional and settings.cache == "once":
        batch_tokens = max(batch_tokens, slot_limit)  # a prompt that sees its canvas is one batch with it
    batch_tokens = min(batch_tokens, context_length)
    return ContextBudget(
        context_length=context_length,
        first_length=context_length if settings.context_length else min(first_length, context_length),
        slot_limit=slot_limit,
        batch_tokens=batch_tokens,
        canvas_tokens=min(canvas_tokens, batch_tokens),
        num_sequences=settings.num_slots + MAX_CANVASES - 1,
        longest_canvas=longest,
    )


def padded(num_cells: int) -> int:
    """As many as llama.cpp makes of them."""
    return -(-num_cells // _PADDING) * _PADDING
