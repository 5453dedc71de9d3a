"""Whether there is memory for a model or a context, asked before any of it is taken.

Afterwards it may be too late: most systems hand out more memory than they have, and end the process that uses it. What
llama.cpp will take for a step is estimated, rather too high than too low.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from dg_lsp.backends.llamacpp.budget import FIRST_TOKENS, ContextBudget
from dg_lsp.backends.llamacpp.devices import Device, gpus
from dg_lsp.backends.llamacpp.sizes import Sizes, Weights
from dg_lsp.errors import ModelMemoryError
from dg_lsp.machine import system_free

ADVICE = "use a smaller model or quantization, or set context_length, num_slots or gpu_layers lower"
"""For a model that is opened."""
_FLOAT_BYTES = 4
_SPARE_BYTES = 32 << 20
_SPARE_SHARE = 0.05
"""Of what is needed: left free beside it, for all that is not counted here."""


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes by what they are for."""

    weights: int = 0
    cache: int = 0
    """Keys and values of prompts."""
    step: int = 0
    """What a forward pass computes with, logits included."""

    @property
    def total(self) -> int:
        """With what is left free beside it; nothing for nothing."""
        bare = self.weights + self.cache + self.step
        return bare + max(_SPARE_BYTES, int(_SPARE_SHARE * bare)) if bare else 0

    def __add__(self, other: "Need") -> "Need":
        return Need(self.weights + other.weights, self.cache + other.cache, self.step + other.step)

    def __sub__(self, other: "Need") -> "Need":
        return Need(self.weights - other.weights, self.cache - other.cache, self.step - other.step)


@dataclass(frozen=True, slots=True)
class Needs:
    """Of both kinds of memory."""

    gpu: Need = Need()
    host: Need = Need()

    def __add__(self, other: "Needs") -> "Needs":
        return Needs(self.gpu + other.gpu, self.host + other.host)

    def __sub__(self, other: "Needs") -> "Needs":
        return Needs(self.gpu - other.gpu, self.host - other.host)


def weights_need(weights: Weights) -> Needs:
    """Of weights; those that are mapped and not read count too, for every step needs all of them."""
    return Needs(Need(weights=weights.gpu), Need(weights=weights.host))


def context_need(
    sizes: Sizes, budget: ContextBudget, num_cells: int, *, gpu_share: float, flash: bool, has_cache: bool = True
) -> Needs:
    """Of a context with so many cells; `gpu_share` says how many of the layers are on the GPU."""
    cache = num_cells * sizes.kv_bytes_per_token if has_cache else 0
    batch, outputs = min(budget.batch_tokens, num_cells), min(budget.canvas_tokens, num_cells)
    seen = num_cells * (2 if flash else 2 + sizes.heads)
    logits = _FLOAT_BYTES * outputs * sizes.vocab_size
    # attention and the head come one after the other, in the same memory
    step = _FLOAT_BYTES * batch * (3 * sizes.width + 2 * sizes.inner) + max(_FLOAT_BYTES * batch * seen, logits)
    on_gpu = int(gpu_share * cache)
    host = Need(cache=cache - on_gpu, step=logits + (0 if gpu_share else step))
    return Needs(Need(cache=on_gpu, step=step) if gpu_share else Need(), host)


def first_context_need(sizes: Sizes, context_length: int, *, gpu_share: float) -> Needs:
    """Before it is known how the model is asked: of the context that it will begin with."""
    length = context_length or min(FIRST_TOKENS, sizes.trained_length or FIRST_TOKENS)
    budget = ContextBudget(length, length, length, 512, 256, 1, 256)
    return context_need(sizes, budget, length, gpu_share=gpu_share, flash=gpu_share > 0)


def check_fits(what: str, needs: Needs, advice: str, *, mapped: int = 0) -> None:
    """`mapped` are bytes of files that the system counts as free although they are used all the time.

    Raises:
        ModelMemoryError: it does not fit, with the numbers.
    """
    used = gpus() if needs.gpu.total else ()
    free = sum(device.memory_free for device in used)
    if free and needs.gpu.total > free:  # 0 where the driver does not say
        raise _refusal(what, needs.gpu, free, " and ".join(device.name for device in used), advice)
    host = needs.gpu + needs.host if _is_unified(used) else needs.host
    free = max(0, system_free() - mapped)
    if host.total > free:
        raise _refusal(what, host, free, "this machine", advice)


def _is_unified(used: Sequence[Device]) -> bool:
    """The GPU has no memory of its own."""
    return any(device.kind == "igpu" for device in used) or bool(used and sys.platform == "darwin")


def _refusal(what: str, need: Need, free: int, where: str, advice: str) -> ModelMemoryError:
    parts = {"weights": need.weights, "prompts": need.cache, "a step": need.step}
    listed = ", ".join(f"{name} {_size(size)}" for name, size in parts.items() if size > 0)
    return ModelMemoryError(
        f"{what} needs {_size(need.total)} of memory with some to spare ({listed}), {where} has {_size(free)} free: "
        f"{advice}"
    )


def _size(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
