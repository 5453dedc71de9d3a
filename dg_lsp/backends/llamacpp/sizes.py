"""How large a model is, by what its file says: its parts, its weights, and where they will lie."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dg_lsp.errors import ModelError
from dg_lsp.weights.header import Header, read_header

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


def header_of(path: Path) -> Header | None:
    """The file's header; None where only llama.cpp can say what is wrong with it."""
    try:
        return read_header(path)
    except ModelError:
        return None


def sizes_of(header: Header) -> Sizes:
    """What the file says, without llama.cpp."""
    texts: dict[str, str] = {}
    table = header.tensors.get("token_embd.weight")
    for key, value in header.values.items():
        if not key.startswith("tokenizer.") and not isinstance(read := value.read(), list):
            texts[key] = str(read)
    return Sizes.of(texts, lists_of(header), table.shape[0] if table else 0)


def lists_of(header: Header) -> dict[str, list[int]]:
    """What is said of each layer."""
    named = ((key, value.read()) for key, value in header.values.items() if key.startswith(f"{header.architecture}."))
    return {
        key: [int(each) for each in read]
        for key, read in named
        if isinstance(read, list) and all(isinstance(each, int) for each in read)
    }


def weights_of(header: Header, gpu_layers: int) -> Weights:
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
