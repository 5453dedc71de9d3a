"""GGUF files for llama.cpp's own diffusion graphs: random weights of a model's size, or the weights of dg-mini.

llama.cpp runs open diffusion models without a KV cache. `dream` and `qwen2` have the same layers, and random weights
cost the same as trained ones. Needs the package `gguf` (the extra `dev` or `training`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from dg_lsp.canvas.spec import ModelSpec
from dg_lsp.errors import UsageError


def write_random_model(
    path: Path, metadata: Mapping[str, str], architecture: str, vocab_size: int, *, seed: int = 0
) -> None:
    """Writes random Q8_0 weights as `dream` or `qwen2`, with the sizes in the metadata of another GGUF file.

    Raises:
        UsageError: `gguf` is not installed.
    """
    gguf = _import_gguf()
    source = metadata["general.architecture"]

    def size(key: str) -> int:
        return int(metadata[f"{source}.{key}"])

    width, heads, kv_heads = size("embedding_length"), size("attention.head_count"), size("attention.head_count_kv")
    layers, hidden = size("block_count"), size("feed_forward_length")
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(4096)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(hidden)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([f"t{i}" for i in range(vocab_size)])
    writer.add_token_types([gguf.TokenType.NORMAL] * vocab_size)
    writer.add_token_merges(["t 0"])
    writer.add_mask_token_id(0)
    rng, q8_0 = np.random.default_rng(seed), gguf.GGMLQuantizationType.Q8_0
    # the heads of qwen2 are as wide as the embedding divided by their number
    for name, shape in _tensors(width, kv_heads * (width // heads), hidden, layers, vocab_size):
        if len(shape) == 1:
            value = 1.0 if name.endswith("norm.weight") else 0.0
            writer.add_tensor(name, np.full(shape, value, np.float32))
        else:
            matrix = rng.standard_normal(shape, np.float32) / np.float32(np.sqrt(shape[-1]))
            writer.add_tensor(name, gguf.quants.quantize(matrix, q8_0), raw_dtype=q8_0)
    _write(writer)


@dataclass(frozen=True, slots=True)
class Sentinels:
    """Spellings of the special tokens of a rewritten model."""

    prefix: str
    suffix: str
    middle: str
    end: str


def write_as_rnd1(source: Path, target: Path, spec: ModelSpec) -> Sentinels:
    """Writes a `qwen3` model as `rnd1`, tensor by tensor: the feed-forward network becomes the only expert.

    The end token becomes an ordinary one, so that llama.cpp prints it.

    Raises:
        UsageError: `gguf` is not installed, or the model has another architecture.
    """
    gguf = _import_gguf()
    reader = gguf.GGUFReader(source)
    fields = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    if fields["general.architecture"] != "qwen3" or spec.fim is None:
        raise UsageError(f"llama.cpp cannot run {source} as a diffusion model: use dg-mini")
    writer = gguf.GGUFWriter(target, "rnd1")
    tokens, kinds = fields["tokenizer.ggml.tokens"], list(fields["tokenizer.ggml.token_type"])
    kinds[spec.end_ids[0]] = int(gguf.TokenType.USER_DEFINED)
    fields["tokenizer.ggml.token_type"] = kinds
    for name, value in fields.items():
        if name not in ("general.architecture", "general.file_type"):
            kind, *items = reader.fields[name].types
            writer.add_key_value(name.replace("qwen3.", "rnd1.", 1), value, kind, items[-1] if items else None)
    writer.add_expert_count(1)
    writer.add_expert_used_count(1)
    writer.add_expert_feed_forward_length(fields["qwen3.feed_forward_length"])
    writer.add_diffusion_shift_logits(False)
    # without this template llama.cpp would wrap the prompt into a chat
    writer.add_chat_template("{{ messages[-1]['content'] }}")
    for tensor in reader.tensors:
        name, data = tensor.name.removesuffix(".weight"), tensor.data
        if name.endswith(("ffn_gate", "ffn_up", "ffn_down")):
            name, data = f"{name}_exps", data[None]
        writer.add_tensor(f"{name}.weight", data, raw_dtype=tensor.tensor_type)
    router = np.zeros((1, fields["qwen3.embedding_length"]), np.float32)
    for layer in range(fields["qwen3.block_count"]):
        writer.add_tensor(f"blk.{layer}.ffn_gate_inp.weight", router)
    _write(writer)
    ids = (spec.fim.prefix_id, spec.fim.suffix_id, spec.fim.middle_id, spec.end_ids[0])
    return Sentinels(*(tokens[token] for token in ids))


def _tensors(
    width: int, kv_width: int, hidden: int, layers: int, vocab_size: int
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape; one dimension is a norm or a bias."""
    yield from (("token_embd.weight", (vocab_size, width)), ("output.weight", (vocab_size, width)))
    yield "output_norm.weight", (width,)
    layer: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (width,),
        "attn_q.weight": (width, width),
        "attn_q.bias": (width,),
        "attn_k.weight": (kv_width, width),
        "attn_k.bias": (kv_width,),
        "attn_v.weight": (kv_width, width),
        "attn_v.bias": (kv_width,),
        "attn_output.weight": (width, width),
        "ffn_norm.weight": (width,),
        "ffn_gate.weight": (hidden, width),
        "ffn_up.weight": (hidden, width),
        "ffn_down.weight": (width, hidden),
    }
    for number in range(layers):
        yield from ((f"blk.{number}.{name}", shape) for name, shape in layer.items())


def _import_gguf() -> ModuleType:
    try:
        import gguf
    except ImportError as error:
        raise UsageError("this benchmark writes model files: pip install 'dg-lsp[dev]'") from error
    module: ModuleType = gguf
    return module


def _write(writer: Any) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
