"""A model for llama.cpp's own diffusion graphs, made from one of ours: to time them, and to see what they answer.

llama.cpp runs open diffusion models without a KV cache, so that every step computes the prompt again. A twin has the
sizes of a model and random weights (`dream` and `qwen2` have the same layers; random weights cost the same as trained
ones). A relabelled model has its weights. Needs `gguf` (the extra `dev` or `training`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from dg_lsp.canvas.spec import ModelSpec
from dg_lsp.errors import UsageError


def write_twin(path: Path, metadata: Mapping[str, str], architecture: str, vocab_size: int, *, seed: int = 0) -> None:
    """Writes a GGUF of `architecture` (`dream` or `qwen2`) with the sizes that another GGUF's metadata gives.

    Raises:
        UsageError: `gguf` is not installed.
    """
    gguf = _gguf()
    size = _Sizes(metadata)
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(4096)
    writer.add_embedding_length(size.width)
    writer.add_block_count(size.layers)
    writer.add_feed_forward_length(size.hidden)
    writer.add_head_count(size.heads)
    writer.add_head_count_kv(size.kv_heads)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([f"t{i}" for i in range(vocab_size)])
    writer.add_token_types([gguf.TokenType.NORMAL] * vocab_size)
    writer.add_token_merges(["t 0"])
    writer.add_mask_token_id(0)
    quantization = gguf.GGMLQuantizationType.Q8_0
    for name, shape in size.matrices(vocab_size):
        matrix = rng.standard_normal(shape, np.float32) / np.float32(np.sqrt(shape[-1]))
        writer.add_tensor(name, gguf.quants.quantize(matrix, quantization), raw_dtype=quantization)
    for name, length, value in size.vectors():
        writer.add_tensor(name, np.full(length, value, np.float32))
    _write(writer)


@dataclass(frozen=True, slots=True)
class Sentinels:
    """The texts that a relabelled model's tokenizer takes for special tokens."""

    prefix: str
    suffix: str
    middle: str
    end: str


def relabel(source: Path, target: Path, spec: ModelSpec) -> Sentinels:
    """Writes a `qwen3` model as `rnd1`, tensor by tensor as it is: qwen3's layers, the feed-forward one as the only
    one of its experts. The end token becomes one that is printed.

    Raises:
        UsageError: `gguf` is not installed, or the model is another one.
    """
    gguf = _gguf()
    reader = gguf.GGUFReader(source)
    fields = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    if fields["general.architecture"] != "qwen3" or spec.fim is None:
        raise UsageError(f"{source} cannot be written as a diffusion model of llama.cpp's: use dg-mini")
    writer = gguf.GGUFWriter(target, "rnd1")
    tokens, kinds = fields["tokenizer.ggml.tokens"], list(fields["tokenizer.ggml.token_type"])
    kinds[spec.end_ids[0]] = int(gguf.TokenType.USER_DEFINED)
    fields["tokenizer.ggml.token_type"] = kinds
    for name, value in fields.items():
        if name not in ("general.architecture", "general.file_type"):
            kind, *of = reader.fields[name].types
            writer.add_key_value(name.replace("qwen3.", "rnd1.", 1), value, kind, of[-1] if of else None)
    writer.add_expert_count(1)
    writer.add_expert_used_count(1)
    writer.add_expert_feed_forward_length(fields["qwen3.feed_forward_length"])
    writer.add_diffusion_shift_logits(False)
    # without a template of its own the prompt would be wrapped into a chat
    writer.add_chat_template("{{ messages[-1]['content'] }}")
    for tensor in reader.tensors:
        name, data = tensor.name.removesuffix(".weight"), tensor.data
        if name.endswith(("ffn_gate", "ffn_up", "ffn_down")):
            name, data = f"{name}_exps", data[None]
        writer.add_tensor(f"{name}.weight", data, raw_dtype=tensor.tensor_type)
    for layer in range(fields["qwen3.block_count"]):
        width = fields["qwen3.embedding_length"]
        writer.add_tensor(f"blk.{layer}.ffn_gate_inp.weight", np.zeros((1, width), np.float32))
    _write(writer)
    ids = (spec.fim.prefix_id, spec.fim.suffix_id, spec.fim.middle_id, spec.end_ids[0])
    return Sentinels(*(tokens[token] for token in ids))


def _gguf() -> ModuleType:
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


class _Sizes:
    """Sizes in channels, and the tensors that they make."""

    def __init__(self, metadata: Mapping[str, str]) -> None:
        architecture = metadata["general.architecture"]

        def of(key: str) -> int:
            return int(metadata[f"{architecture}.{key}"])

        self.width, self.layers, self.hidden = of("embedding_length"), of("block_count"), of("feed_forward_length")
        self.heads, self.kv_heads = of("attention.head_count"), of("attention.head_count_kv")
        # qwen2's heads are as wide as the embedding divided by their number
        self.kv_width = self.kv_heads * (self.width // self.heads)

    def matrices(self, vocab_size: int) -> list[tuple[str, tuple[int, int]]]:
        """(name, shape)."""
        found = [("token_embd.weight", (vocab_size, self.width)), ("output.weight", (vocab_size, self.width))]
        for i in range(self.layers):
            found += [
                (f"blk.{i}.attn_q.weight", (self.width, self.width)),
                (f"blk.{i}.attn_k.weight", (self.kv_width, self.width)),
                (f"blk.{i}.attn_v.weight", (self.kv_width, self.width)),
                (f"blk.{i}.attn_output.weight", (self.width, self.width)),
                (f"blk.{i}.ffn_gate.weight", (self.hidden, self.width)),
                (f"blk.{i}.ffn_up.weight", (self.hidden, self.width)),
                (f"blk.{i}.ffn_down.weight", (self.width, self.hidden)),
            ]
        return found

    def vectors(self) -> list[tuple[str, int, float]]:
        """(name, length, value)."""
        found = [("output_norm.weight", self.width, 1.0)]
        for i in range(self.layers):
            found += [(f"blk.{i}.attn_norm.weight", self.width, 1.0), (f"blk.{i}.ffn_norm.weight", self.width, 1.0)]
            found += [(f"blk.{i}.attn_q.bias", self.width, 0.0)]
            found += [(f"blk.{i}.attn_{part}.bias", self.kv_width, 0.0) for part in "kv"]
        return found
