"""Pretrained causal models: a GGUF file or a checkpoint folder as a network in torch, in float32.

Architectures: llama, qwen2, qwen3, without experts, vision or rotations that depend on the text's length.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gguf as gguf_files
import numpy as np
import numpy.typing as npt
import torch

from dg_lsp.errors import InputFileError, ModelBrokenError, ModelUnsupportedError
from dg_lsp.gguf import ARRAY, GGUFHeader, read_header
from dg_lsp.models.checkpoint import SavedTensor, read_checkpoint, read_json, to_float32
from dg_lsp.models.registry import CONFIGURATION
from dg_training.network import DiffusionNetwork, NetworkConfig
from dg_training.tokenizer import PrunedVocabulary, Vocabulary, vocabulary_of_folder, vocabulary_of_gguf

ARCHITECTURES = ("llama", "qwen2", "qwen3")
"""llama.cpp's names, which are those of `model_type` in a config.json too."""
_ADVICE = f"use a model of {', '.join(ARCHITECTURES)}"
EMBEDDING, OUTPUT = "token_embd.weight", "output.weight"
ROPE_FACTORS = "rope_freqs.weight"
Weights = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Origin:
    """What a checkpoint states about itself."""

    name: str
    licence: str  # empty if it states none
    licence_name: str = ""
    licence_link: str = ""


@dataclass(frozen=True, slots=True)
class Pretrained:
    """A causal model; the weights are read on demand."""

    config: NetworkConfig
    vocabulary: Vocabulary
    origin: Origin
    context_length: int
    read: Callable[[str], Weights]  # a tensor by its name in GGUF files, heads in NeoX order

    def network(self, pruned: PrunedVocabulary) -> DiffusionNetwork:
        """The network with the rows of a pruned vocabulary; raises as `read_pretrained` does."""
        network = DiffusionNetwork(replace(self.config, num_tokens=len(pruned.source_ids)))
        with torch.no_grad(), _explained_errors(self.origin.name):
            for name, target in network.state_dict().items():
                stored = self.read(name)
                weights = pruned.rows(stored) if name in (EMBEDDING, OUTPUT) else stored
                if tuple(target.shape) != weights.shape:
                    raise ModelBrokenError(
                        f"{self.origin.name}: {name} has the shape {weights.shape}: download it again"
                    )
                target.copy_(torch.tensor(weights))
        return network


def read_pretrained(path: Path) -> Pretrained:
    """Opens a GGUF file, or a folder with config.json, tokenizer.json and safetensors.

    Raises:
        InputFileError, ModelNotFoundError: a file is missing.
        ModelBrokenError: a file is damaged.
        ModelUnsupportedError: another architecture or tokenizer, or a value of its configuration that is missing, not
            valid, or of an option that the network lacks.
    """
    with _explained_errors(path):
        return _read_folder(path) if path.is_dir() else _read_gguf(path)


@contextmanager
def _explained_errors(name: object) -> Iterator[None]:
    """Maps what values of another type, or numbers that do not belong together, raise."""
    try:
        yield
    except KeyError as error:
        raise ModelUnsupportedError(f"{name} lacks {error}: {_ADVICE}") from error
    except (ArithmeticError, AttributeError, IndexError, TypeError, ValueError) as error:
        raise ModelUnsupportedError(f"{name} has a configuration that is not valid ({error}): {_ADVICE}") from error


def permuted(weights: Weights, heads: int, *, to_neox: bool) -> Weights:
    """Rows of a llama's queries or keys. Rotated pairs are neighbours in GGUF files, and half a head apart here."""
    shape = (heads, -1, 2) if to_neox else (heads, 2, -1)
    return weights.reshape(*shape, *weights.shape[1:]).swapaxes(1, 2).reshape(weights.shape)


# GGUF files


def _read_gguf(path: Path) -> Pretrained:
    header = read_header(path)
    architecture = header.architecture
    if architecture not in ARCHITECTURES:
        raise ModelUnsupportedError(f"{path} is of architecture {architecture or 'unknown'}: {_ADVICE}")
    values = {key: value.read() for key, value in header.values.items() if value.kind != ARRAY}

    def value(key: str, default: Any = None) -> Any:
        content = values.get(f"{architecture}.{key}", default)
        if content is None:
            raise KeyError(f"{architecture}.{key}")
        return content

    scaling = str(values.get(f"{architecture}.rope.scaling.type", "none"))
    if scaling not in ("none", "linear") or f"{architecture}.expert_count" in values:
        raise ModelUnsupportedError(f"{path} has experts, or rotations scaled by {scaling}: {_ADVICE}")
    heads, width = int(value("attention.head_count")), int(value("embedding_length"))
    head_width = int(value("attention.key_length", width // heads))
    linear = float(value("rope.scaling.factor", 1.0)) if scaling == "linear" else 1.0
    factors: tuple[float, ...] = (linear,) * (head_width // 2) if linear != 1.0 else ()
    if ROPE_FACTORS in header.tensors:
        factors = tuple(dequantized(header, ROPE_FACTORS).tolist())
    config = NetworkConfig(
        width=width,
        layers=int(value("block_count")),
        heads=heads,
        kv_heads=int(value("attention.head_count_kv", heads)),
        hidden=int(value("feed_forward_length")),
        head_width=head_width,
        num_tokens=header.tensors[EMBEDDING].shape[0],
        rope_theta=float(value("rope.freq_base", 10_000.0)),
        norm_eps=float(value("attention.layer_norm_rms_epsilon")),
        architecture=architecture,
        is_tied=OUTPUT not in header.tensors,
        rope_factors=factors,
    )
    texts = {key: str(values.get(f"general.{key}", "")) for key in ("name", "license", "license.name", "license.link")}
    # a file that `adapt` wrote states what it was made from
    first_name = values.get("general.base_model.0.name", "") if "dg.version" in values else ""
    origin = Origin(
        str(first_name) or texts["name"] or path.stem, texts["license"], texts["license.name"], texts["license.link"]
    )

    def read(name: str) -> Weights:
        if name not in header.tensors:
            raise ModelBrokenError(f"{path} lacks {name}: download it again")
        weights = dequantized(header, name)
        is_rotated = architecture == "llama" and re.search(r"attn_[qk]\.weight$", name)
        if not is_rotated:
            return weights
        return permuted(weights, heads if "attn_q" in name else config.kv_heads, to_neox=True)

    return Pretrained(config, vocabulary_of_gguf(header), origin, int(value("context_length")), read)


def dequantized(header: GGUFHeader, name: str) -> Weights:
    """A tensor in float32; ModelUnsupportedError for a number format that the package gguf cannot read."""
    tensor = header.tensors[name]
    try:
        weights = gguf_files.quants.dequantize(header.rows(name), gguf_files.GGMLQuantizationType(tensor.kind.number))
    except (NotImplementedError, ValueError) as error:
        problem = f"{header.path}: weights in {tensor.kind.name} cannot be read for training: use a file in F16 or Q8_0"
        raise ModelUnsupportedError(problem) from error
    return np.asarray(weights, np.float32).reshape(tensor.shape)


# checkpoint folders

_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def _read_folder(folder: Path) -> Pretrained:
    settings = read_json(folder / CONFIGURATION)
    architecture = settings.get("model_type", "")
    if architecture not in ARCHITECTURES:
        raise ModelUnsupportedError(f"{folder} holds a {settings.get('model_type', 'model')}: {_ADVICE}")
    saved = read_checkpoint(folder)
    config = _config_of(folder, architecture, settings, is_tied="lm_head.weight" not in saved)
    end = settings["eos_token_id"]
    end_id = int(end[0] if isinstance(end, list) else end)
    vocabulary = vocabulary_of_folder(folder, end_id, config.num_tokens)

    def read(name: str) -> Weights:
        source = _name_in_folder(name)
        if source not in saved:
            raise ModelBrokenError(f"{folder} lacks {source}: download it again")
        return _values(saved[source])

    name, length = folder.resolve().name, int(settings["max_position_embeddings"])
    return Pretrained(config, vocabulary, _origin_of(folder, name), length, read)


def _config_of(folder: Path, architecture: str, settings: Mapping[str, Any], *, is_tied: bool) -> NetworkConfig:
    heads = int(settings["num_attention_heads"])
    width = int(settings["hidden_size"])
    head_width = int(settings.get("head_dim") or width // heads)
    older = {"rope_theta": settings.get("rope_theta", 10_000.0), **(settings.get("rope_scaling") or {})}
    rotation = {**older, **(settings.get("rope_parameters") or {})}
    config = NetworkConfig(
        width=width,
        layers=int(settings["num_hidden_layers"]),
        heads=heads,
        kv_heads=int(settings.get("num_key_value_heads") or heads),
        hidden=int(settings["intermediate_size"]),
        head_width=head_width,
        num_tokens=int(settings["vocab_size"]),
        rope_theta=float(rotation["rope_theta"]),
        norm_eps=float(settings["rms_norm_eps"]),
        architecture=architecture,
        is_tied=is_tied,
        rope_factors=_rope_factors(folder, rotation, head_width),
    )
    unsupported = {
        "sliding_window": settings.get("use_sliding_window")
        and "sliding_attention" in (settings.get("layer_types") or []),
        "attention_bias": not config.has_bias and settings.get("attention_bias"),
        "mlp_bias": settings.get("mlp_bias"),
    }
    if problem := next((key for key, is_there in unsupported.items() if is_there), ""):
        raise ModelUnsupportedError(f"{folder}/{CONFIGURATION}: {problem} is not supported: {_ADVICE}")
    return config


def _rope_factors(folder: Path, rotation: Mapping[str, Any], head_width: int) -> tuple[float, ...]:
    """Divisors of the frequencies, as llama.cpp's converter computes them."""
    kind = rotation.get("rope_type") or rotation.get("type") or "default"
    if kind == "default":
        return ()
    if kind == "linear":
        return (float(rotation["factor"]),) * (head_width // 2)
    if kind != "llama3":
        raise ModelUnsupportedError(
            f"{folder}/{CONFIGURATION}: rotations scaled by {kind} are not supported: {_ADVICE}"
        )
    factor, low, high, length = (
        float(rotation[key])
        for key in ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    )
    factors = []
    for i in range(head_width // 2):
        wavelength = 2 * math.pi * float(rotation["rope_theta"]) ** (2 * i / head_width)
        share = min(1.0, max(0.0, (length / wavelength - low) / (high - low)))
        factors.append(1 / ((1 - share) / factor + share))
    return tuple(factors)


def _name_in_folder(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if stem in _TOP:
        return f"{_TOP[stem]}.{kind}"
    _, layer, part = stem.split(".")
    return f"model.layers.{layer}.{_LAYER[part]}.{kind}"


def _values(tensor: SavedTensor) -> Weights:
    blocks = [to_float32(block, tensor.kind) for block in tensor.blocks(max(1, tensor.size))]
    return np.concatenate(blocks).reshape(tensor.shape)


_CARD, _FIELD = "README.md", re.compile(r"^(license|license_name|license_link):[ \t]*(\S.*?)[ \t]*$", re.MULTILINE)


def _origin_of(folder: Path, name: str) -> Origin:
    """Licence fields of the model card's front matter."""
    try:
        text = (folder / _CARD).read_text(encoding="utf-8")
    except FileNotFoundError:
        return Origin(name, "")
    except (OSError, UnicodeDecodeError) as error:
        raise InputFileError(f"{folder / _CARD} cannot be read: {error}") from error
    front = text.split("---")[1] if text.startswith("---") and text.count("---") > 1 else ""
    fields = {key: value.strip("\"'") for key, value in _FIELD.findall(front)}
    return Origin(name, *(fields.get(key, "") for key in ("license", "license_name", "license_link")))
