"""A model of the same size with random weights, in another architecture: to time llama.cpp's own diffusion graph.

llama.cpp runs open diffusion models (`dream`: qwen2's layers) without a KV cache, so that every step computes the
prompt again. Random weights cost the same as trained ones. Needs `gguf` (the extra `dev` or `training`).
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from dg_lsp.errors import UsageError


def write_twin(path: Path, metadata: Mapping[str, str], architecture: str, vocab_size: int, *, seed: int = 0) -> None:
    """Writes a GGUF of `architecture` (`dream` or `qwen2`) with the sizes that another GGUF's metadata gives.

    Raises:
        UsageError: `gguf` is not installed.
    """
    try:
        import gguf
    except ImportError as error:
        raise UsageError("this benchmark writes model files: pip install 'dg-lsp[dev]'") from error
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
