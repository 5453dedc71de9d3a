"""GGUF files of the trained network: architecture qwen3, tied embedding, with the tokenizer and `dg.*` metadata.

All `dg.*` values are strings or scalars, because llama.cpp's metadata strings skip arrays.
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

from dg_lsp.errors import InputFileError
from dg_lsp.training import tokenizer as vocabulary
from dg_lsp.training.network import DiffusionNetwork, NetworkConfig

CONTEXT_TOKENS = 2048
CONFIDENCE_THRESHOLD = 0.7
REPETITION_MATCH = 3  # tokens that must occur earlier in the buffer before what follows them is copied
FILE_TYPES = {"F32": "ALL_F32", "F16": "MOSTLY_F16", "Q8_0": "MOSTLY_Q8_0"}
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
"""Names of a block's weights here and in the file."""


@dataclass(frozen=True, slots=True)
class ExportMetadata:
    """What the file states beside its weights."""

    config: str
    canvas_lengths: tuple[int, ...]
    max_prompt_tokens: int
    tokens_seen: int
    name: str = "dg-mini"
    decoder_statistics: Mapping[str, str] = field(default_factory=dict)
    """As `evaluate.decoder_statistics` returns them: `line-end.causal` -> `5.8,0,0,0.3`."""


def write_model(
    path: Path, network: DiffusionNetwork, tokenizer: Tokenizer, metadata: ExportMetadata, file_type: str = "Q8_0"
) -> None:
    """Write the file. `file_type` is F32, F16 or Q8_0 and concerns the matrices; norms stay F32."""
    writer = gguf.GGUFWriter(path, "qwen3")
    _add_shape(writer, network.config)
    _add_tokenizer(writer, tokenizer, network.config.num_tokens)
    _add_metadata(writer, metadata)
    writer.add_file_type(getattr(gguf.LlamaFileType, FILE_TYPES[file_type]))
    weights = network.state_dict()
    for ours, theirs in _tensor_names(network.config).items():
        _add_weight(writer, theirs, weights[ours].detach().float().cpu().numpy(), file_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def read_model(path: Path, config: NetworkConfig) -> tuple[DiffusionNetwork, int]:
    """The network of a file that `write_model` wrote, in float32, and the tokens that it was trained on.

    Raises:
        InputFileError: the file has another architecture or size.
    """
    reader = gguf.GGUFReader(path)
    stored = {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in reader.tensors}
    names = _tensor_names(config)
    if set(stored) != set(names.values()) or stored["token_embd.weight"].shape != (config.num_tokens, config.width):
        raise InputFileError(f"{path} does not hold weights of this configuration: choose another --config")
    network = DiffusionNetwork(config)
    network.load_state_dict({ours: torch.from_numpy(np.array(stored[n], np.float32)) for ours, n in names.items()})
    tokens_seen = reader.get_field("dg.tokens_seen")
    return network.eval(), int(tokens_seen.contents()) if tokens_seen else 0


def _tensor_names(config: NetworkConfig) -> dict[str, str]:
    """Names of all weights here and in the file, in the file's order."""
    names = {"embedding.weight": "token_embd.weight", "norm.weight": "output_norm.weight"}
    for i in range(config.layers):
        names |= {f"blocks.{i}.{ours}.weight": f"blk.{i}.{theirs}.weight" for ours, theirs in TENSORS.items()}
    return names


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
    """The vocabulary as llama.cpp's `gpt2` model, and the keys of llama-server's /infill."""
    tokens = {i: token for token, i in tokenizer.get_vocab().items()}
    kinds, num_special = gguf.TokenType, len(vocabulary.SPECIAL_TOKENS)
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(vocabulary.PRE_TOKENIZER)
    writer.add_token_list([tokens.get(i, f"<|unused_{i}|>") for i in range(num_tokens)])
    ordinary = [kinds.NORMAL if i in tokens else kinds.UNUSED for i in range(num_special, num_tokens)]
    writer.add_token_types([kinds.CONTROL] * num_special + ordinary)
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    writer.add_bos_token_id(vocabulary.END_OF_TEXT)
    writer.add_eos_token_id(vocabulary.END_OF_TEXT)
    writer.add_eot_token_id(vocabulary.END_OF_MIDDLE)
    writer.add_mask_token_id(vocabulary.MASK)
    writer.add_add_bos_token(False)
    for key, token in {"pre": vocabulary.PREFIX, "suf": vocabulary.SUFFIX, "mid": vocabulary.MIDDLE}.items():
        writer.add_uint32(f"tokenizer.ggml.fim_{key}_token_id", token)


def _add_metadata(writer: gguf.GGUFWriter, m: ExportMetadata) -> None:
    writer.add_name(m.name)
    writer.add_description(
        "A small block-diffusion model that fills Python code: "
        "the prompt is encoded causally, the canvas denoised in both directions"
    )
    writer.add_license("apache-2.0")
    writer.add_string("dg.noise", "mask")
    writer.add_string("dg.prompt_format", "fim")
    writer.add_string("dg.banned_token_ids", ",".join(map(str, vocabulary.BANNED_IDS)))
    writer.add_string("dg.canvas_lengths", ",".join(map(str, sorted(m.canvas_lengths))))
    writer.add_string("dg.config", m.config)
    writer.add_uint32("dg.version", 1)
    writer.add_uint32("dg.mask_token_id", vocabulary.MASK)
    writer.add_uint32("dg.end_token_id", vocabulary.END_OF_MIDDLE)
    writer.add_uint32("dg.prefix_token_id", vocabulary.PREFIX)
    writer.add_uint32("dg.suffix_token_id", vocabulary.SUFFIX)
    writer.add_uint32("dg.middle_token_id", vocabulary.MIDDLE)
    writer.add_uint32("dg.max_prompt_tokens", m.max_prompt_tokens)
    # enough to accept the tokens of the longest canvas one at a time
    writer.add_uint32("dg.max_denoising_steps", max(m.canvas_lengths))
    writer.add_float32("dg.confidence_threshold", CONFIDENCE_THRESHOLD)
    writer.add_bool("dg.causal", True)
    writer.add_uint64("dg.tokens_seen", m.tokens_seen)
    writer.add_uint32("dg.echo_match", REPETITION_MATCH)
    for name, numbers in m.decoder_statistics.items():
        writer.add_string(f"dg.plan.{name}", numbers)


def _add_weight(writer: gguf.GGUFWriter, name: str, weight: npt.NDArray[np.float32], file_type: str) -> None:
    if weight.ndim == 1 or file_type == "F32":
        writer.add_tensor(name, weight)
    elif file_type == "F16":
        writer.add_tensor(name, weight.astype(np.float16))
    else:
        quantization = gguf.GGMLQuantizationType[file_type]
        writer.add_tensor(name, gguf.quants.quantize(weight, quantization), raw_dtype=quantization)
