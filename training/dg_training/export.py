"""GGUF files of a trained network: weights, tokenizer and `dg.*` metadata.

All `dg.*` values are strings or scalars, because llama.cpp's metadata strings skip arrays.
"""

from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import torch

from dg_lsp.gguf import GGUFHeader, read_header
from dg_training import iq4_nl
from dg_training import tokenizer as vocabulary
from dg_training.network import DiffusionNetwork, NetworkConfig
from dg_training.pretrained import ROPE_FACTORS, Origin, permuted
from dg_training.store import replacing
from dg_training.tokenizer import Vocabulary

CONFIDENCE_THRESHOLD = 0.9
LANGUAGES = (
    *("python", "javascript", "typescript", "typescriptreact", "json", "toml", "yaml", "markdown", "html", "css"),
    *("shellscript", "sql", "go", "rust", "c"),
)
"""Of the corpus, as LSP language ids."""


@dataclass(slots=True)
class TrainingProgress:
    """Counters of a run."""

    step: int = 0
    tokens: int = 0  # clean tokens, padding included
    seconds: float = 0.0  # of training, over all parts of the run


@dataclass(frozen=True, slots=True)
class ExportMetadata:
    """What the file states beside its weights."""

    name: str
    description: str
    origin: Origin  # of the weights that were adapted; its licence is the file's
    canvas_lengths: tuple[int, ...]
    max_prompt_tokens: int
    progress: TrainingProgress
    context_length: int
    start_ids: tuple[int, ...] = ()
    has_canvases: bool = True  # False: trained without canvases, so that it decodes token by token only


def write_model(
    path: Path, network: DiffusionNetwork, vocabulary: Vocabulary, metadata: ExportMetadata, file_type: str = "Q8_0"
) -> None:
    """Write the file. `file_type` is F32, F16, Q8_0 or IQ4_NL and concerns the matrices; norms and biases stay F32.

    With IQ4_NL the embedding is in Q8_0.
    """
    config = network.config
    with replacing(path) as partial:
        writer = gguf.GGUFWriter(partial, config.architecture)
        add_shape(writer, config, metadata.context_length)
        vocabulary.write(writer)
        _add_metadata(writer, metadata)
        writer.add_file_type(gguf.LlamaFileType["ALL_F32" if file_type == "F32" else f"MOSTLY_{file_type}"])
        for name, tensor in network.state_dict().items():
            weight = tensor.float().cpu().numpy()
            if config.architecture == "llama" and (heads := _rotated_heads(name, config)):
                weight = permuted(weight, heads, to_neox=False)
            if weight.ndim == 1 or file_type == "F32":
                writer.add_tensor(name, weight)
            elif file_type == "IQ4_NL" and "embd" not in name:
                packed = iq4_nl.pack(torch.from_numpy(np.ascontiguousarray(weight)))
                writer.add_tensor(name, packed, raw_dtype=gguf.GGMLQuantizationType.IQ4_NL)
            else:
                quantization = gguf.GGMLQuantizationType["Q8_0" if file_type == "IQ4_NL" else file_type]
                writer.add_tensor(name, gguf.quants.quantize(weight, quantization), raw_dtype=quantization)
        if len(set(config.rope_factors)) > 1:
            writer.add_tensor(ROPE_FACTORS, np.array(config.rope_factors, np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def _rotated_heads(name: str, config: NetworkConfig) -> int:
    """The number of heads in a matrix of queries or keys; 0 for other tensors."""
    return config.heads if "attn_q." in name else config.kv_heads if "attn_k." in name else 0


def training_progress(path: Path) -> TrainingProgress:
    """The progress that a GGUF file states, 0 where it states none.

    Raises:
        ModelError: the file does not exist or is damaged.
    """
    header = read_header(path)
    return TrainingProgress(
        step=int(_number(header, "dg.training_steps")),
        tokens=int(_number(header, "dg.tokens_seen")),
        seconds=_number(header, "dg.training_seconds"),
    )


def _number(header: GGUFHeader, key: str) -> float:
    """0 if the value is missing or no number."""
    value = header.read(key, 0)
    return value if isinstance(value, int | float) else 0


def add_shape(writer: gguf.GGUFWriter, c: NetworkConfig, context_length: int) -> None:
    """Write the keys of a network's shape."""
    writer.add_context_length(context_length)
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
    if c.architecture == "llama":
        writer.add_rope_dimension_count(c.head_width)
    if len(set(c.rope_factors)) == 1:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(c.rope_factors[0])


def _add_metadata(writer: gguf.GGUFWriter, m: ExportMetadata) -> None:
    writer.add_name(m.name)
    writer.add_description(m.description)
    writer.add_license(m.origin.licence)
    if m.origin.licence_name:
        writer.add_license_name(m.origin.licence_name)
    if m.origin.licence_link:
        writer.add_license_link(m.origin.licence_link)
    writer.add_base_model_count(1)
    writer.add_base_model_name(0, m.origin.name)
    strings = {
        "noise": "mask" if m.has_canvases else "none",
        "prompt_format": "fim",
        "languages": ",".join(LANGUAGES),
        "cut": "token",  # prompts end at a safe token boundary
        "banned_token_ids": ",".join(map(str, vocabulary.BANNED_IDS)),
        "canvas_lengths": ",".join(map(str, sorted(m.canvas_lengths))),
        "config": "adapt",
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
        "echo_match": 0,
    }
    for key, number in numbers.items():
        writer.add_uint32(f"dg.{key}", number)
    writer.add_float32("dg.confidence_threshold", CONFIDENCE_THRESHOLD)
    writer.add_bool("dg.causal", True)
    writer.add_bool("dg.shift", True)
    if m.start_ids:
        writer.add_string("dg.start_token_ids", ",".join(map(str, m.start_ids)))
    writer.add_uint64("dg.tokens_seen", m.progress.tokens)
    if m.progress.step:
        writer.add_uint32("dg.training_steps", m.progress.step)
        writer.add_float32("dg.training_seconds", m.progress.seconds)
