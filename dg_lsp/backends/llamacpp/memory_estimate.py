"""Estimates the memory of weights and contexts, and refuses what does not fit before any of it is allocated.

Layers are split over GPUs as whole layers: one GPU computes after the other, and between two of them travel the states
of one layer. The alternatives of llama.cpp, which split each layer, exchange data in every layer and are not offered.
No GPU has confirmed the estimates for GPUs, and none has run a split: both are tested with made-up devices.
"""

import glob
import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dg_lsp.backends.llamacpp.library import Device
from dg_lsp.canvas.spec import MaskSampling, ModelSpec
from dg_lsp.errors import ModelMemoryError, SettingsError, size_text
from dg_lsp.gguf import GGUFHeader, read_header
from dg_lsp.settings import ModelSettings
from dg_lsp.system import system_free

_ROOM = 1 << 30
"""Bytes that a model leaves free on its GPU for prompts that grow; otherwise its layers are split."""


def choose_gpus(wanted: str, listed: Sequence[Device], needed: int) -> tuple[int, ...]:
    """The GPUs for a model of `needed` bytes by the setting `model.device`, as indices into the listed ones.

    `auto` takes the GPU with the most free memory where the model fits into it with some room, else all GPUs: one GPU
    is faster than two that wait for each other. Over several ones llama.cpp splits by their free memory.

    Raises:
        SettingsError: the setting names a GPU that is not there.
    """
    kind, _, numbers = wanted.partition(":")
    if kind == "cpu" or (kind == "auto" and not listed):
        return ()
    named = tuple(dict.fromkeys(map(int, re.findall(r"\d+", numbers))))
    if not listed or max(named, default=0) >= len(listed):
        what = f"{len(listed)} GPU{'s' * (len(listed) != 1)}"
        raise SettingsError(
            f"model.device is {wanted}, but llama.cpp lists {what}: see dg-lsp doctor, or set it to auto"
        )
    largest = max(range(len(listed)), key=lambda number: listed[number].memory_free)
    return named or ((largest,) if listed[largest].memory_free >= needed + _ROOM else tuple(range(len(listed))))


MAX_LAYERS = 512  # more layers make llama.cpp abort the process
MAX_CANVASES = 8
"""Canvases of one step."""
_CACHE_BYTES = 1 << 30
"""Soft limit of an automatic KV cache: beyond it, slots get fewer tokens of their own if memory is short."""
_LOGITS_BYTES = 256 << 20
"""Soft limit of a step's logits; it limits the canvas tokens of a step."""
CONVERSATION_TOKENS = 8192
"""Tokens of a text or conversation with its answer that a slot may grow to, if there is memory for them."""
FIRST_TOKENS = 2048
"""Tokens of a slot when the context is made; longer prompts make the context grow."""
_FIRST_EXACT_TOKENS = 512
"""The same where each step computes the prompt: such a pass needs far more memory than a cache."""
_UBATCH = 512
_PADDING = 256  # llama.cpp rounds a context up to this


def padded(num_cells: int) -> int:
    """The number of cells that llama.cpp allocates."""
    return -(-num_cells // _PADDING) * _PADDING


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """Sizes of a model's layers."""

    layers: int
    heads: int
    width: int
    inner: int  # width inside the feed-forward networks of a layer, summed over the active experts
    vocab_size: int
    trained_length: int
    kv_bytes_per_token: int  # bytes of an F16 KV cache; 0 without a cache

    @classmethod
    def of(cls, header: GGUFHeader) -> "ModelSizes":
        """From a file, without llama.cpp."""

        def numbers(name: str) -> list[int]:
            read = header.read(f"{header.architecture}.{name}", [])
            return [item for item in (read if isinstance(read, list) else [read]) if isinstance(item, int)]

        def number(name: str, default: int = 0) -> int:
            return max(numbers(name), default=default)

        def by_layer(name: str, default: int) -> Sequence[int]:
            values = numbers(f"attention.{name}") or [default]
            return values if len(values) > 1 else values * min(layers, MAX_LAYERS)

        layers = number("block_count")
        heads = max(1, number("attention.head_count"))
        width = number("embedding_length")
        experts = number("expert_used_count") * number("expert_feed_forward_length", number("feed_forward_length"))
        parts = ("key", "value")
        full = [number(f"attention.{part}_length", width // heads) for part in parts]
        sliding = [number(f"attention.{part}_length_swa", size) for part, size in zip(parts, full, strict=True)]
        layer_kinds = zip(by_layer("head_count_kv", heads), by_layer("sliding_window_pattern", 0), strict=False)
        table = header.tensors.get("token_embd.weight")
        return cls(
            layers=layers,
            heads=heads,
            width=width,
            inner=max(number("feed_forward_length"), experts),
            vocab_size=table.shape[0] if table else 0,
            trained_length=number("context_length"),
            kv_bytes_per_token=2 * sum(count * sum(sliding if slides else full) for count, slides in layer_kinds),
        )


@dataclass(frozen=True, slots=True)
class ContextBudget:
    """Sizes of a llama.cpp context, in tokens."""

    context_length: int  # upper limit of the cells of the KV cache, which all slots share
    first_length: int  # cells when the context is made
    slot_limit: int  # prompt and canvas of one slot together
    batch_tokens: int  # tokens of one physical batch; a non-causal batch must not be larger
    canvas_tokens: int  # tokens of all canvases of one step
    num_sequences: int  # one for each slot, and one for each further canvas of a step
    prompt_limit: int  # tokens of the longest prompt


def context_budget(
    spec: ModelSpec, settings: ModelSettings, sizes: ModelSizes, *, is_limited: bool = True
) -> ContextBudget:
    """A context that starts with one slot and may grow to all slots. The setting `context_length` fixes its size.

    With `is_limited`, a slot has no more tokens than the soft limit of the cache, except for a fill.
    """
    longest = spec.longest_block
    canvas_tokens = min(max(256, 4 * longest), max(longest, _LOGITS_BYTES // (4 * sizes.vocab_size)))
    # the model was not trained on positions beyond; absolute ones are read past the end of their table
    of_fills = spec.longest_prompt + 2 * longest
    soft_limit = _CACHE_BYTES // max(1, sizes.kv_bytes_per_token)
    of_conversation = CONVERSATION_TOKENS + 2 * longest
    of_texts = 0 if spec.is_bidirectional else min(of_conversation, soft_limit) if is_limited else of_conversation
    slot_limit = min(settings.context_length or max(of_fills, of_texts), sizes.trained_length)
    shared = max(slot_limit + canvas_tokens, soft_limit)
    context_length = padded(settings.context_length or min(settings.num_slots * slot_limit + canvas_tokens, shared))
    of_canvases = canvas_tokens if spec.sampling else 0
    first_length = padded(max(_UBATCH, min(of_fills, slot_limit, FIRST_TOKENS) + of_canvases))
    # a prompt and a canvas that see each other are one batch
    of_batch = max(_UBATCH, canvas_tokens, slot_limit if spec.is_bidirectional else 0)
    batch_tokens = min(of_batch, context_length)
    return ContextBudget(
        context_length=context_length,
        first_length=context_length if settings.context_length else min(first_length, context_length),
        slot_limit=slot_limit,
        batch_tokens=batch_tokens,
        canvas_tokens=min(canvas_tokens, batch_tokens),
        num_sequences=settings.num_slots + MAX_CANVASES - 1,
        prompt_limit=max(0, slot_limit - longest),
    )


def exact_budget(spec: ModelSpec, settings: ModelSettings, sizes: ModelSizes) -> ContextBudget:
    """A context that computes a prompt and its canvas, grown to its limit, in one batch."""
    sampling = spec.sampling
    longest = spec.longest_block
    if isinstance(sampling, MaskSampling) and sampling.expand_id is not None:
        longest += sampling.max_free
    length = min(settings.context_length or spec.longest_prompt + longest, sizes.trained_length)
    first = length if settings.context_length else min(length, padded(max(_FIRST_EXACT_TOKENS, longest)))
    return ContextBudget(length, first, length, length, length, settings.num_slots, max(0, length - longest))


_PART = re.compile(r"-\d{5}-of-(\d{5})\.gguf$")
_LAYER = re.compile(r"blk\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes on the GPUs and on the host."""

    gpu: int = 0
    host: int = 0


def weight_bytes(header: GGUFHeader, gpu_layers: int) -> MemoryEstimate:
    """llama.cpp puts the last layers on the GPU, and token embeddings only if they are also the output layer."""
    layers = ModelSizes.of(header).layers
    first = layers + 1 - num_gpu_layers(gpu_layers, layers)
    bytes_of_layer = Counter[int]()
    for name, tensor in header.tensors.items():
        layer_name = _LAYER.match(name)
        other_layer = -1 if name.startswith("token_embd") else layers
        bytes_of_layer[int(layer_name[1]) if layer_name else other_layer] += tensor.size
    gpu = sum(size for layer, size in bytes_of_layer.items() if layer >= first)
    host = bytes_of_layer.total() - gpu
    is_tied = first <= layers and "output.weight" not in header.tensors
    return MemoryEstimate(gpu + bytes_of_layer[-1] if is_tied else gpu, host)


def num_gpu_layers(wanted: int, layers: int) -> int:
    """Layers on the GPU by the setting `gpu_layers`: -1 means all; the output layer counts as one."""
    return layers + 1 if wanted < 0 else min(wanted, layers + 1)


def split_parts(path: Path) -> list[Path]:
    """The files of a split model, of which `path` is one; for any other model `path` alone."""
    if not (part := _PART.search(path.name)):
        return [path]
    return sorted(path.parent.glob(f"{glob.escape(path.name[: part.start()])}-?????-of-{part[1]}.gguf"))


ADVICE = "use a smaller model or quantization, or set context_length, num_slots or gpu_layers lower"
_FLOAT_BYTES = 4
_SPARE_BYTES = 32 << 20
_SPARE_SHARE = 0.05
"""Left free for what the estimate does not count, as a share of the estimate."""


def estimate_context(
    sizes: ModelSizes, budget: ContextBudget, num_cells: int, *, gpu_share: float, flash: bool
) -> MemoryEstimate:
    """Memory of a context with this many cells; `gpu_share` is the share of the layers on the GPU."""
    cache = num_cells * sizes.kv_bytes_per_token
    batch = min(budget.batch_tokens, num_cells)
    outputs = min(budget.canvas_tokens, num_cells)
    scores = num_cells * (2 if flash else 2 + sizes.heads)
    logits = _FLOAT_BYTES * outputs * sizes.vocab_size
    # attention and the output layer use the same memory one after the other
    step = _FLOAT_BYTES * batch * (3 * sizes.width + 2 * sizes.inner) + max(_FLOAT_BYTES * batch * scores, logits)
    on_gpu = int(gpu_share * cache)
    if gpu_share:
        return MemoryEstimate(on_gpu + step, cache - on_gpu + logits)
    return MemoryEstimate(0, cache + logits + step)


def estimate_load(header: GGUFHeader, *, gpu_layers: int, context_length: int) -> tuple[MemoryEstimate, MemoryEstimate]:
    """The weights of a model, and all memory that they and a first context need."""
    tensors = dict(header.tensors)
    for part in {*split_parts(header.path)} - {header.path}:
        tensors.update(read_header(part).tensors)
    header = replace(header, tensors=tensors)
    weights = weight_bytes(header, gpu_layers)
    sizes = ModelSizes.of(header)
    share = num_gpu_layers(gpu_layers, sizes.layers) / (sizes.layers + 1)
    length = context_length or min(FIRST_TOKENS, sizes.trained_length or FIRST_TOKENS)
    budget = ContextBudget(length, length, length, 512, 256, 1, 0)  # before the model's spec is known
    needed = estimate_context(sizes, budget, length, gpu_share=share, flash=share > 0)
    # mapped weights count as well: every step reads all of them
    return weights, MemoryEstimate(needed.gpu + weights.gpu, needed.host + weights.host)


def check_fits(
    what: str, estimate: MemoryEstimate, advice: str, *, gpus: Sequence[Device] = (), mapped: int = 0
) -> None:
    """Raises `ModelMemoryError` with the numbers where an estimate exceeds the free memory of the GPUs or the machine.

    `mapped` bytes of files count as free for the system, but are in use.
    """
    if free := sum(gpu.memory_free for gpu in gpus):  # 0 if the driver does not report it
        _check_free(what, estimate.gpu, free, " and ".join(gpu.name for gpu in gpus), advice)
    is_unified = any(gpu.kind == "igpu" for gpu in gpus) or bool(gpus and sys.platform == "darwin")
    host = estimate.gpu + estimate.host if is_unified else estimate.host
    _check_free(what, host, max(0, system_free() - mapped), "this machine", advice)


def _check_free(what: str, use: int, free: int, where: str, advice: str) -> None:
    needed = use and use + max(_SPARE_BYTES, int(_SPARE_SHARE * use))
    if needed > free:
        problem = f"{what} needs {size_text(needed)} of memory including a reserve"
        raise ModelMemoryError(f"{problem}, {where} has {size_text(free)} free: {advice}")
