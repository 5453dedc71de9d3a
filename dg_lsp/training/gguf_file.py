"""Weights -> GGUF (architecture qwen3, tied embedding), with a tokenizer and a description of itself.

Everything under `dg.` is a string or a scalar: llama.cpp's metadata strings skip arrays.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer
from torch import Tensor

from dg_lsp.training import vocabulary as v
from dg_lsp.training.config import NetworkConfig
from dg_lsp.training.network import Network

CONTEXT_TOKENS = 2048
CONFIDENCE_THRESHOLD = 0.7
TENSORS = {
    "attn_norm": "attn_norm",
    "ffn_norm": "ffn_norm",
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "output": "attn_output",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
}


@dataclass(frozen=True, slots=True)
class Description:
    """What the file says of itself beside its weights."""

    config: str
    canvas_lengths: tuple[int, ...]
    max_prompt_tokens: int
    tokens_seen: int
    name: str = "dg-mini"
    echo_match: int = 3
    """Tokens that must have occurred before in the buffer for what followed them to be taken; 0 never does."""
    plans: Mapping[str, str] = field(default_factory=dict)
    """What plans take, measured on validation data: `line-end.causal` -> `5.8,0,0,0.3`; see docs/architecture.md."""


def write_gguf(
    path: Path, network: Network, tokenizer: Tokenizer, description: Description, kind: str = "Q8_0"
) -> None:
    """Writes the file; `kind` is F32, F16 or Q8_0 and concerns the matrices, norms stay F32."""
    writer = gguf.GGUFWriter(path, "qwen3")
    _add_shape(writer, network.config)
    _add_tokenizer(writer, tokenizer, network.config.num_tokens)
    _add_description(writer, description)
    writer.add_file_type(
        getattr(gguf.LlamaFileType, {"F32": "ALL_F32", "F16": "MOSTLY_F16", "Q8_0": "MOSTLY_Q8_0"}[kind])
    )
    _add_weights(writer, network, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def read_gguf(path: Path, config: NetworkConfig) -> tuple[dict[str, Tensor], int]:
    """The weights of a file that `write_gguf` made, in float32 by the network's names, and the tokens they have seen.

    Raises:
        ValueError: the file is of another architecture or size.
    """
    reader = gguf.GGUFReader(path)
    stored = {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in reader.tensors}
    names = {"embedding.weight": "token_embd.weight", "norm.weight": "output_norm.weight"}
    for i in range(config.layers):
        names |= {f"blocks.{i}.{ours}.weight": f"blk.{i}.{theirs}.weight" for ours, theirs in TENSORS.items()}
    if set(stored) != set(names.values()) or stored["token_embd.weight"].shape != (config.num_tokens, config.width):
        raise ValueError(f"{path} does not hold weights of this configuration")
    seen = reader.get_field("dg.tokens_seen")
    weights = {ours: torch.from_numpy(np.array(stored[theirs], np.float32)) for ours, theirs in names.items()}
    return weights, int(seen.contents()) if seen else 0


def _add_shape(writer: gguf.GGUFWriter, c: NetworkConfig) -> None:
    writer.add_context_length(CONTEXT_TOKENS)
    writer.add_embedding_length(c.width)
    writer.add_block_count(c.layers)
    writer.add_feed_forward_length(c.hidden)
    writer.add_head_count(c.heads)
    writer.add_head_count_kv(c.kv_heads)
    writer.add_key_length(c.head_width)
    writer.add_value_length(c.head_width)
    writer.add_layer_norm_rms_eps(c.norm_eps)
    writer.add_rope_freq_base(c.rope_theta)
    writer.add_vocab_size(c.num_tokens)


def _add_tokenizer(writer: gguf.GGUFWriter, tokenizer: Tokenizer, num_tokens: int) -> None:
    """The vocabulary as llama.cpp's `gpt2` model, and its own keys for infilling (llama-server's /infill)."""
    known = {i: token for token, i in tokenizer.get_vocab().items()}
    kinds = gguf.TokenType
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(v.PRE_TOKENIZER)
    writer.add_token_list([known.get(i, f"<|unused_{i}|>") for i in range(num_tokens)])
    writer.add_token_types(
        [
            kinds.CONTROL if i < v.NUM_SPECIALS else kinds.NORMAL if i in known else kinds.UNUSED
            for i in range(num_tokens)
        ]
    )
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    writer.add_bos_token_id(v.END_OF_TEXT)
    writer.add_eos_token_id(v.END_OF_TEXT)
    writer.add_eot_token_id(v.END_OF_MIDDLE)
    writer.add_mask_token_id(v.MASK)
    writer.add_add_bos_token(False)
    for key, token in {"pre": v.PREFIX, "suf": v.SUFFIX, "mid": v.MIDDLE}.items():
        writer.add_uint32(f"tokenizer.ggml.fim_{key}_token_id", token)


def _add_description(writer: gguf.GGUFWriter, d: Description) -> None:
    writer.add_name(d.name)
    writer.add_description(
        "A small block-diffusion model that fills Python code: "
        "the prompt is encoded causally, the canvas denoised in both directions"
    )
    writer.add_license("apache-2.0")
    writer.add_string("dg.noise", "mask")
    writer.add_string("dg.prompt_format", "fim")
    writer.add_string("dg.banned_token_ids", ",".join(map(str, v.BANNED_IDS)))
    writer.add_string("dg.canvas_lengths", ",".join(map(str, sorted(d.canvas_lengths))))
    writer.add_string("dg.config", d.config)
    writer.add_uint32("dg.version", 1)
    writer.add_uint32("dg.mask_token_id", v.MASK)
    writer.add_uint32("dg.end_token_id", v.END_OF_MIDDLE)
    writer.add_uint32("dg.prefix_token_id", v.PREFIX)
    writer.add_uint32("dg.suffix_token_id", v.SUFFIX)
    writer.add_uint32("dg.middle_token_id", v.MIDDLE)
    writer.add_uint32("dg.max_prompt_tokens", d.max_prompt_tokens)
    # enough to take the tokens of the longest canvas one at a time
    writer.add_uint32("dg.max_denoising_steps", max(d.canvas_lengths))
    writer.add_float32("dg.confidence_threshold", CONFIDENCE_THRESHOLD)
    writer.add_bool("dg.causal", True)
    writer.add_uint64("dg.tokens_seen", d.tokens_seen)
    writer.add_uint32("dg.echo_match", d.echo_match)
    for name, numbers in d.plans.items():
        writer.add_string(f"dg.plan.{name}", numbers)


def _add_weights(writer: gguf.GGUFWriter, network: Network, kind: str) -> None:
    weights = {name: w.detach().float().cpu().numpy() for name, w in network.state_dict().items()}
    _add(writer, "token_embd.weight", weights["embedding.weight"], kind)
    _add(writer, "output_norm.weight", weights["norm.weight"], kind)
    for i in range(network.config.layers):
        for ours, theirs in TENSORS.items():
            _add(writer, f"blk.{i}.{theirs}.weight", weights[f"blocks.{i}.{ours}.weight"], kind)


def _add(writer: gguf.GGUFWriter, name: str, weight: npt.NDArray[np.float32], kind: str) -> None:
    if weight.ndim == 1 or kind == "F32":
        writer.add_tensor(name, weight)
    elif kind == "F16":
        writer.add_tensor(name, weight.astype(np.float16))
    else:
        quantization = gguf.GGMLQuantizationType[kind]
        writer.add_tensor(name, gguf.quants.quantize(weight, quantization), raw_dtype=quantization)
