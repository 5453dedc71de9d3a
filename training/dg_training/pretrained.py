"""Pretrained causal models: a GGUF file as a network in torch, in float32.

Architectures: llama, qwen2, qwen3, without experts, vision or rotations that depend on the text's length.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gguf as gguf_files
import numpy as np
import numpy.typing as npt
import torch

from dg_lsp.errors import InputFileError, ModelError, ModelUnsupportedError
from dg_lsp.gguf import ARRAY, GGUFHeader, read_header
from dg_training.network import DiffusionNetwork, NetworkConfig
from dg_training.tokenizer import PrunedVocabulary, Vocabulary, read_vocabulary

ARCHITECTURES = ("llama", "qwen2", "qwen3")
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
                    raise ModelError(f"{self.origin.name}: {name} has the shape {weights.shape}: download it again")
                target.copy_(torch.tensor(weights))
        return network


def read_pretrained(path: Path) -> Pretrained:
    """Opens a GGUF file.

    Raises:
        InputFileError: a folder.
        ModelError: the file is missing or damaged.
        ModelUnsupportedError: another architecture or tokenizer, or a value of its metadata that is missing, not valid,
            or of an option that the network lacks.
    """
    if path.is_dir():
        raise InputFileError(f"{path} is a folder: make a GGUF file of it with dg-lsp models convert --type F16")
    with _explained_errors(path):
        return _read_gguf(path)


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
    heads = int(value("attention.head_count"))
    width = int(value("embedding_length"))
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
            raise ModelError(f"{path} lacks {name}: download it again")
        weights = dequantized(header, name)
        is_rotated = architecture == "llama" and re.search(r"attn_[qk]\.weight$", name)
        if not is_rotated:
            return weights
        return permuted(weights, heads if "attn_q" in name else config.kv_heads, to_neox=True)

    return Pretrained(config, read_vocabulary(header), origin, int(value("context_length")), read)


def dequantized(header: GGUFHeader, name: str) -> Weights:
    """A tensor in float32; ModelUnsupportedError for a number format that the package gguf cannot read."""
    tensor = header.tensors[name]
    try:
        weights = gguf_files.quants.dequantize(header.rows(name), gguf_files.GGMLQuantizationType(tensor.kind.number))
    except (NotImplementedError, ValueError) as error:
        problem = f"{header.path}: weights in {tensor.kind.name} cannot be read for training: use a file in F16 or Q8_0"
        raise ModelUnsupportedError(problem) from error
    return np.asarray(weights, np.float32).reshape(tensor.shape)
