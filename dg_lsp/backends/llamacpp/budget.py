"""How large a context is made: from the spec, the settings and what the machine can hold."""

import os
from dataclasses import dataclass

from dg_lsp.canvas.spec import ModelSpec
from dg_lsp.errors import ModelMemoryError
from dg_lsp.settings import RuntimeSettings

MAX_CANVASES = 8
"""Canvases of one step."""
_CACHE_BYTES = 1 << 30
"""Soft cap of an automatic KV cache: slots get fewer tokens of their own before it grows beyond."""
_LOGITS_BYTES = 256 << 20
"""Soft cap of a step's logits, which decides how many canvas tokens one step takes."""
_UBATCH = 512
_PADDING = 256  # llama.cpp rounds a context up to this


@dataclass(frozen=True, slots=True)
class ContextBudget:
    """Sizes of one llama.cpp context, in tokens."""

    context_length: int
    """Cells of the KV cache, shared by all slots."""
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


def context_budget(
    spec: ModelSpec,
    settings: RuntimeSettings,
    *,
    vocab_size: int,
    trained_length: int,
    kv_bytes_per_token: int,
    memory_bytes: int | None = None,
) -> ContextBudget:
    """Sizes that hold the settings' slots.

    Raises:
        ModelMemoryError: the context that the settings ask for cannot fit into this machine's memory.
    """
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
    memory = memory_bytes if memory_bytes is not None else _machine_memory()
    if wanted * kv_bytes_per_token > memory:
        needed, have = wanted * kv_bytes_per_token >> 20, memory >> 20
        raise ModelMemoryError(
            f"a context of {wanted} tokens needs {needed} MiB, the machine has {have}; lower context_length"
        )
    context_length = -(-wanted // _PADDING) * _PADDING
    batch_tokens = max(_UBATCH, canvas_tokens)
    if spec.is_bidirectional and settings.cache == "once":
        batch_tokens = max(batch_tokens, slot_limit)  # a prompt that sees its canvas is one batch with it
    batch_tokens = min(batch_tokens, context_length)
    return ContextBudget(
        context_length=context_length,
        slot_limit=slot_limit,
        batch_tokens=batch_tokens,
        canvas_tokens=min(canvas_tokens, batch_tokens),
        num_sequences=settings.num_slots + MAX_CANVASES - 1,
        longest_canvas=longest,
    )


def _machine_memory() -> int:
    """Bytes of physical memory; 1 TiB where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 1 << 40
