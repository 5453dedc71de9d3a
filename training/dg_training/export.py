"""GGUF files of a trained network: weights, tokenizer and `dg.*` metadata.

All `dg.*` values are strings or scalars, because llama.cpp's metadata strings skip arrays.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import gguf
import numpy as np
import torch
from tokenizers import Tokenizer

from dg_lsp.errors import InputFileError
from dg_lsp.gguf import GGUFHeader, read_header
from dg_training import iq4_nl
from dg_training import tokenizer as vocabulary
from dg_training.network import DiffusionNetwork, NetworkConfig
from dg_training.pretrained import ROPE_FACTORS, Origin, dequantized, permuted
from dg_training.store import replacing
from dg_training.tokenizer import Vocabulary, own_vocabulary

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
    name: str = "dg-mini"
    description: str = (
        "A small block-diffusion model that fills Python code: "
        "the prompt is encoded causally, the canvas denoised in both directions"
    )
    languages: tuple[str, ...] = (
        *("python", "javascript", "typescript", "typescriptreact", "json", "toml", "yaml", "markdown", "html", "css"),
        *("shellscript", "sql", "go", "rust", "c"),
    )
    """Of the corpus, as LSP language ids."""
    origin: Origin = field(default_factory=lambda: Origin("", "apache-2.0"))
    """Of the weights that were adapted; its licence is the file's."""
    context_length: int = CONTEXT_TOKENS
    confidence_threshold: float = CONFIDENCE_THRESHOLD
    repetition_match: int = REPETITION_MATCH  # 0: no repetition
    is_shifted: bool = False  # see `ObjectiveConfig.is_shifted`
    start_ids: tuple[int, ...] = ()
    has_canvases: bool = True  # False: trained without canvases, so that it decodes token by token only


def write_model(
    path: Path,
    network: DiffusionNetwork,
    vocabulary: Tokenizer | Vocabulary,
    metadata: ExportMetadata,
    file_type: str = "Q8_0",
) -> None:
    """Write the file. `file_type` is F32, F16, Q8_0 or IQ4_NL and concerns the matrices; norms and biases stay F32.

    With IQ4_NL the embedding is in Q8_0.
    """
    with replacing(path) as partial:
        writer = gguf.GGUFWriter(partial, network.config.architecture)
        _add_contents(writer, network, vocabulary, metadata, file_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def _add_contents(
    writer: gguf.GGUFWriter,
    network: DiffusionNetwork,
    vocabulary: Tokenizer | Vocabulary,
    metadata: ExportMetadata,
    file_type: str,
) -> None:
    config = network.config
    _add_shape(writer, config, metadata.context_length)
    own = vocabulary if isinstance(vocabulary, Vocabulary) else own_vocabulary(vocabulary, config.num_tokens)
    own.write(writer)
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


def _rotated_heads(name: str, config: NetworkConfig) -> int:
    """The number of heads in a matrix of queries or keys; 0 for other tensors."""
    return config.heads if "attn_q." in name else config.kv_heads if "attn_k." in name else 0


def read_model(path: Path, config: NetworkConfig) -> DiffusionNetwork:
    """The network of a file that `write_model` wrote, in float32.

    Raises:
        InputFileError: the file has another architecture or size.
        ModelError: the file does not exist or is damaged.
    """
    header = read_header(path)
    stored = {name: dequantized(header, name) for name in header.tensors}
    network = DiffusionNetwork(config)
    if {name: weight.shape for name, weight in stored.items()} != {n: w.shape for n, w in network.state_dict().items()}:
        raise InputFileError(f"{path} does not hold weights of this configuration: choose another --config")
    network.load_state_dict({name: torch.tensor(weight) for name, weight in stored.items()})
    return network.eval()


def training_progress(path: Path) -> tuple[int, int, float]:
    """Steps, tokens and seconds of training that a GGUF file states, 0 where it does not or is a folder.

    Raises ModelError as `read_model` does.
    """
    if path.is_dir():
        return 0, 0, 0.0
    header = read_header(path)
    steps, tokens = int(_number(header, "dg.training_steps")), int(_number(header, "dg.tokens_seen"))
    return steps, tokens, _number(header, "dg.training_seconds")


def _number(header: GGUFHeader, key: str) -> float:
    """0 if the value is missing or no number."""
    value = header.values[key].read() if key in header.values else 0
    return value if isinstance(value, int | float) else 0


def _add_shape(writer: gguf.GGUFWriter, c: NetworkConfig, context_length: int) -> None:
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
    for value, add in (
        (m.origin.licence_name, writer.add_license_name),
        (m.origin.licence_link, writer.add_license_link),
    ):
        if value:
            add(value)
    if m.origin.name:
        writer.add_base_model_count(1)
        writer.add_base_model_name(0, m.origin.name)
    strings = {
        "noise": "mask" if m.has_canvases else "none",
        "prompt_format": "fim",
        "languages": ",".join(m.languages),
        "cut": "token",  # prompts end at a safe token boundary
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
        "echo_match": m.repetition_match,
    }
    for key, number in numbers.items():
        writer.add_uint32(f"dg.{key}", number)
    writer.add_float32("dg.confidence_threshold", m.confidence_threshold)
    writer.add_bool("dg.causal", True)
    if m.is_shifted:
        writer.add_bool("dg.shift", True)
    if m.start_ids:
        writer.add_string("dg.start_token_ids", ",".join(map(str, m.start_ids)))
    writer.add_uint64("dg.tokens_seen", m.tokens_seen)
    if m.steps:
        writer.add_uint32("dg.training_steps", m.steps)
        writer.add_float32("dg.training_seconds", m.seconds)
