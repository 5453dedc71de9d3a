"""How large a context is made, and how large it may become: from the spec and the settings.

Whether there is memory for it, `need` says.
"""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dg_lsp.backends.llamacpp.library import Device, gpus
from dg_lsp.canvas.spec import ModelSpec
from dg_lsp.errors import ModelError, ModelMemoryError
from dg_lsp.gguf import GGUFHeader, read_header
from dg_lsp.settings import RuntimeSettings
from dg_lsp.system import system_free

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
    if spec.is_bidirectional and settings.prompt_attention == "per_request":
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


_F16_BYTES = 2
_PART = re.compile(r"-\d{5}-of-(\d{5})\.gguf$")
_LAYER = re.compile(r"blk\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of a model's parts."""

    layers: int
    heads: int
    width: int
    inner: int
    """Inside of a layer's feed-forward networks, of all experts that work at a time."""
    vocab_size: int
    trained_length: int
    kv_bytes_per_token: int
    """Of an F16 KV cache."""

    @classmethod
    def of(cls, texts: Mapping[str, str], lists: Mapping[str, Sequence[int]], vocab_size: int) -> "Sizes":
        """From a file's metadata: scalars as texts, and what is said of each layer as lists."""
        architecture = texts.get("general.architecture", "")

        def number(name: str, default: int = 0) -> int:
            key = f"{architecture}.{name}"
            text = texts.get(key, "")
            return int(text) if text.isdecimal() else max(lists.get(key, ()), default=default)

        layers, heads, width = number("block_count"), max(1, number("attention.head_count")), number("embedding_length")
        experts = number("expert_used_count") * number("expert_feed_forward_length", number("feed_forward_length"))
        whole = [number(f"attention.{name}_length", width // heads) for name in ("key", "value")]
        window = [
            number(f"attention.{name}_length_swa", size) for name, size in zip(("key", "value"), whole, strict=True)
        ]
        kv_heads = lists.get(f"{architecture}.attention.head_count_kv", ())
        kv_heads = kv_heads or [number("attention.head_count_kv", heads)] * layers
        slides = lists.get(f"{architecture}.attention.sliding_window_pattern", ()) or [0] * layers
        cells = sum(
            count * sum(window if is_sliding else whole) for count, is_sliding in zip(kv_heads, slides, strict=False)
        )
        return cls(
            layers=layers,
            heads=heads,
            width=width,
            inner=max(number("feed_forward_length"), experts),
            vocab_size=vocab_size,
            trained_length=number("context_length"),
            kv_bytes_per_token=_F16_BYTES * cells,
        )


@dataclass(frozen=True, slots=True)
class Weights:
    """Bytes of a model's weights by where they lie."""

    gpu: int
    host: int


def layers_on_gpu(wanted: int, layers: int) -> int:
    """As the settings count: -1 is all of them, and what comes after the last one counts as one, too."""
    return layers + 1 if wanted < 0 else min(wanted, layers + 1)


def header_of(path: Path) -> GGUFHeader | None:
    """The file's header; None where only llama.cpp can say what is wrong with it."""
    try:
        return read_header(path)
    except ModelError:
        return None


def sizes_of(header: GGUFHeader) -> Sizes:
    """What the file says, without llama.cpp."""
    texts: dict[str, str] = {}
    table = header.tensors.get("token_embd.weight")
    for key, value in header.values.items():
        if not key.startswith("tokenizer.") and not isinstance(read := value.read(), list):
            texts[key] = str(read)
    return Sizes.of(texts, lists_of(header), table.shape[0] if table else 0)


def lists_of(header: GGUFHeader) -> dict[str, list[int]]:
    """What is said of each layer."""
    named = ((key, value.read()) for key, value in header.values.items() if key.startswith(f"{header.architecture}."))
    return {
        key: [int(each) for each in read]
        for key, read in named
        if isinstance(read, list) and all(isinstance(each, int) for each in read)
    }


def weights_of(header: GGUFHeader, gpu_layers: int) -> Weights:
    """Where llama.cpp puts tensors: the last layers on the GPU, embeddings never but for a head that is the same."""
    layers = sizes_of(header).layers
    first = layers + 1 - layers_on_gpu(gpu_layers, layers)
    gpu = host = 0
    for name, tensor in header.tensors.items():
        found = _LAYER.match(name)
        number = int(found[1]) if found else -1 if name.startswith("token_embd") else layers
        if number >= first:
            gpu += tensor.size
        else:
            host += tensor.size
    if first <= layers and "output.weight" not in header.tensors and "token_embd.weight" in header.tensors:
        gpu += header.tensors["token_embd.weight"].size
    return Weights(gpu, host)


def total_size(path: Path) -> int:
    """Bytes of a model's file, or of all parts of one that is split."""
    if not (found := _PART.search(path.name)):
        return path.stat().st_size
    stem = path.name[: found.start()]
    return sum(part.stat().st_size for part in path.parent.glob(f"{stem}-*-of-{found[1]}.gguf"))


ADVICE = "use a smaller model or quantization, or set context_length, num_slots or gpu_layers lower"
"""For a model that is opened."""
_FLOAT_BYTES = 4
_SPARE_BYTES = 32 << 20
_SPARE_SHARE = 0.05
"""Of what is needed: left free beside it, for all that is not counted here."""


@dataclass(frozen=True, slots=True)
class MemoryNeed:
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

    def __add__(self, other: "MemoryNeed") -> "MemoryNeed":
        return MemoryNeed(self.weights + other.weights, self.cache + other.cache, self.step + other.step)

    def __sub__(self, other: "MemoryNeed") -> "MemoryNeed":
        return MemoryNeed(self.weights - other.weights, self.cache - other.cache, self.step - other.step)


@dataclass(frozen=True, slots=True)
class MemoryNeeds:
    """Of both kinds of memory."""

    gpu: MemoryNeed = MemoryNeed()
    host: MemoryNeed = MemoryNeed()

    def __add__(self, other: "MemoryNeeds") -> "MemoryNeeds":
        return MemoryNeeds(self.gpu + other.gpu, self.host + other.host)

    def __sub__(self, other: "MemoryNeeds") -> "MemoryNeeds":
        return MemoryNeeds(self.gpu - other.gpu, self.host - other.host)


def weights_need(weights: Weights) -> MemoryNeeds:
    """Of weights; those that are mapped and not read count too, for every step needs all of them."""
    return MemoryNeeds(MemoryNeed(weights=weights.gpu), MemoryNeed(weights=weights.host))


def context_need(
    sizes: Sizes, budget: ContextBudget, num_cells: int, *, gpu_share: float, flash: bool, has_cache: bool = True
) -> MemoryNeeds:
    """Of a context with so many cells; `gpu_share` says how many of the layers are on the GPU."""
    cache = num_cells * sizes.kv_bytes_per_token if has_cache else 0
    batch, outputs = min(budget.batch_tokens, num_cells), min(budget.canvas_tokens, num_cells)
    seen = num_cells * (2 if flash else 2 + sizes.heads)
    logits = _FLOAT_BYTES * outputs * sizes.vocab_size
    # attention and the head come one after the other, in the same memory
    step = _FLOAT_BYTES * batch * (3 * sizes.width + 2 * sizes.inner) + max(_FLOAT_BYTES * batch * seen, logits)
    on_gpu = int(gpu_share * cache)
    host = MemoryNeed(cache=cache - on_gpu, step=logits + (0 if gpu_share else step))
    return MemoryNeeds(MemoryNeed(cache=on_gpu, step=step) if gpu_share else MemoryNeed(), host)


def first_context_need(sizes: Sizes, context_length: int, *, gpu_share: float) -> MemoryNeeds:
    """Before it is known how the model is asked: of the context that it will begin with."""
    length = context_length or min(FIRST_TOKENS, sizes.trained_length or FIRST_TOKENS)
    budget = ContextBudget(length, length, length, 512, 256, 1, 256)
    return context_need(sizes, budget, length, gpu_share=gpu_share, flash=gpu_share > 0)


def check_fits(what: str, needs: MemoryNeeds, advice: str, *, mapped: int = 0) -> None:
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


def _refusal(what: str, need: MemoryNeed, free: int, where: str, advice: str) -> ModelMemoryError:
    parts = {"weights": need.weights, "prompts": need.cache, "a step": need.step}
    listed = ", ".join(f"{name} {_size(size)}" for name, size in parts.items() if size > 0)
    return ModelMemoryError(
        f"{what} needs {_size(need.total)} of memory with some to spare ({listed}), {where} has {_size(free)} free: "
        f"{advice}"
    )


def _size(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
