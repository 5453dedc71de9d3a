"""GGUF files of the trained network: architecture qwen3, tied embedding, with the tokenizer and `dg.*` metadata.

All `dg.*` values are strings or scalars, because llama.cpp's metadata strings skip arrays.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import gguf
import numpy as np
import torch
from tokenizers import Tokenizer

from dg_lsp.errors import InputFileError
from dg_lsp.training import tokenizer as vocabulary
from dg_lsp.training.network import DiffusionNetwork, NetworkConfig

CONTEXT_TOKENS = 2048
CONFIDENCE_THRESHOLD = 0.7
REPETITION_MATCH = 3  # tokens that must occur earlier in the buffer before what follows them is copied


@dataclass(frozen=True, slots=True)
class ExportMetadata:
    """What the file states beside its weights."""

    config: str
    canvas_lengths: tuple[int, ...]
    max_prompt_tokens: int
    tokens_seen: int
    decoder_statistics: Mapping[str, str] = field(default_factory=dict)
    """As `evaluate.decoder_statistics` returns them: `line-end.causal` -> `5.8,0,0,0.3`."""
    steps: int = 0
    seconds: float = 0.0  # of training


def write_model(
    path: Path, network: DiffusionNetwork, tokenizer: Tokenizer, metadata: ExportMetadata, file_type: str = "Q8_0"
) -> None:
    """Write the file. `file_type` is F32, F16 or Q8_0 and concerns the matrices; norms stay F32."""
    writer = gguf.GGUFWriter(path, "qwen3")
    _add_shape(writer, network.config)
    _add_tokenizer(writer, tokenizer, network.config.num_tokens)
    _add_metadata(writer, metadata)
    writer.add_file_type(gguf.LlamaFileType["ALL_F32" if file_type == "F32" else f"MOSTLY_{file_type}"])
    for name, tensor in network.state_dict().items():
        weight = tensor.float().cpu().numpy()
        if weight.ndim == 1 or file_type == "F32":
            writer.add_tensor(name, weight)
        else:
            quantization = gguf.GGMLQuantizationType[file_type]
            writer.add_tensor(name, gguf.quants.quantize(weight, quantization), raw_dtype=quantization)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def read_model(path: Path, config: NetworkConfig) -> tuple[DiffusionNetwork, int]:
    """The network of a file that `write_model` wrote, in float32, and the tokens that it was trained on.

    Raises:
        InputFileError: the file does not exist, or has another architecture or size.
    """
    if not path.exists():
        raise InputFileError(f"no such file: {path}")
    reader = gguf.GGUFReader(path)
    stored = {t.name: np.array(gguf.quants.dequantize(t.data, t.tensor_type), np.float32) for t in reader.tensors}
    network = DiffusionNetwork(config)
    if {name: weight.shape for name, weight in stored.items()} != {n: w.shape for n, w in network.state_dict().items()}:
        raise InputFileError(f"{path} does not hold weights of this configuration: choose another --config")
    network.load_state_dict({name: torch.from_numpy(weight) for name, weight in stored.items()})
    tokens_seen = reader.get_field("dg.tokens_seen")
    return network.eval(), int(tokens_seen.contents()) if tokens_seen else 0


def read_progress(path: Path) -> tuple[int, float]:
    """Steps and seconds of training that a file states, 0 where it does not."""
    fields = map(gguf.GGUFReader(path).get_field, ("dg.training_steps", "dg.training_seconds"))
    steps, seconds = (field.contents() if field else 0 for field in fields)
    return int(steps), float(seconds)


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
    writer.add_name("dg-mini")
    writer.add_description(
        "A small block-diffusion model that fills Python code: "
        "the prompt is encoded causally, the canvas denoised in both directions"
    )
    writer.add_license("apache-2.0")
    strings = {
        "noise": "mask",
        "prompt_format": "fim",
        "languages": "python",
        "banned_token_ids": ",".join(map(str, vocabulary.BANNED_IDS)),
        "canvas_lengths": ",".join(map(str, sorted(m.canvas_lengths))),
        "config": m.config,
        **{f"plan.{name}": numbers for name, numbers in m.decoder_statistics.items()},
    }
    for key, text in strings.items():
        writer.add_string(f"dg.{key}", text)
    numbers = {
        "version": 1,
        "mask_token_id": vocabulary.MASK,
        "end_token_id": vocabulary.END_OF_MIDDLE,
        "prefix_token_id": vocabulary.PREFIX,
        "suffix_token_id": vocabulary.SUFFIX,
        "middle_token_id": vocabulary.MIDDLE,
        "max_prompt_tokens": m.max_prompt_tokens,
        "max_denoising_steps": max(m.canvas_lengths),  # enough to accept the tokens of the longest one at a time
        "echo_match": REPETITION_MATCH,
    }
    for key, number in numbers.items():
        writer.add_uint32(f"dg.{key}", number)
    writer.add_float32("dg.confidence_threshold", CONFIDENCE_THRESHOLD)
    writer.add_bool("dg.causal", True)
    writer.add_uint64("dg.tokens_seen", m.tokens_seen)
    if m.steps:
        writer.add_uint32("dg.training_steps", m.steps)
        writer.add_float32("dg.training_seconds", m.seconds)
