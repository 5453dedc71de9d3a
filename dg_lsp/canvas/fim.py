"""Fill-in-the-middle prompts: suffix, then prefix, then the middle sentinel, then an open canvas.

The suffix comes first so that typing changes only the prompt's end and the KV cache keeps the rest. Prefix and
suffix are tokenized apart, as in training: a cursor inside a word needs no care.
"""

import numpy as np

from dg_lsp.canvas.plan import CanvasPlan, TokenIds, token_ids
from dg_lsp.canvas.spec import MaskSampling, ModelSpec
from dg_lsp.canvas.tokenizer import Tokenizer
from dg_lsp.context.prompt import Prompt
from dg_lsp.errors import ModelUnsupportedError

SUFFIX_SHARE = 0.3
"""Share of the prompt's tokens that the suffix may take; the prefix takes what it leaves."""


def fim_prompt(prompt: Prompt, tokenizer: Tokenizer, spec: ModelSpec, max_tokens: int) -> TokenIds:
    """Prompt ids, at most `max_tokens` of them.

    A prefix too long for its room loses its beginning in steps of an eighth of the room, so that a typed character
    almost never moves the window's start, which would void the cached tokens after it.
    """
    if spec.fim is None:
        raise ModelUnsupportedError(f"{spec.name} has no fill-in-the-middle tokens; choose another model")
    room = max(0, max_tokens - 3)
    suffix = tokenizer.encode(prompt.suffix)[: int(room * SUFFIX_SHARE)]
    prefix = tokenizer.encode(prompt.prefix)
    room -= len(suffix)
    if (excess := len(prefix) - room) > 0:
        stride = max(1, room // 8)
        prefix = prefix[-(-excess // stride) * stride :]
    fim = spec.fim
    return token_ids(np.concatenate([[fim.suffix_id], suffix, [fim.prefix_id], prefix, [fim.middle_id]]))


def open_canvas(prompt_ids: TokenIds, spec: ModelSpec, length: int, rng: np.random.Generator) -> CanvasPlan:
    """A canvas with nothing frozen right after the prompt: masks, or random tokens for uniform noise."""
    if isinstance(spec.sampling, MaskSampling):
        canvas = np.full(length, spec.sampling.mask_id, np.int32)
    else:
        canvas = rng.integers(0, spec.vocab_size, length, dtype=np.int32)
    return CanvasPlan(prompt_ids, canvas, np.zeros(length, np.bool_))


def next_canvas(plan: CanvasPlan, filled_ids: TokenIds, spec: ModelSpec, rng: np.random.Generator) -> CanvasPlan:
    """The canvas that goes on after a full one: what was filled joins the prompt."""
    prompt_ids = token_ids(np.concatenate([plan.prompt_ids, filled_ids]))
    return open_canvas(prompt_ids, spec, len(plan.canvas_ids), rng)
