"""Pretrained causal models: a GGUF file as a network in torch, in float32.

Architectures: llama, qwen2, qwen3, without experts, vision or rotations that depend on the text's length.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gguf as gguf_files
import numpy as np
import numpy.typing as npt
import torch

from dg_lsp.errors import InputFileError, ModelError, ModelUnsupportedError
from dg_lsp.gguf import GGUFHeader, Value, read_header, text
from dg_training.network import DiffusionNetwork, NetworkConfig
from dg_training.tokenizer import PrunedVocabulary, Vocabulary, read_vocabulary

ARCHITECTURES = ("llama", "qwen2", "qwen3")
_ADVICE = f"use a model of {', '.join(ARCHITECTURES)}"
EMBEDDING, OUTPUT = "token_embd.weight", "output.weight"
ROPE_FACTORS = "rope_freqs.weight"
LICENCE = "general.license"
Weights = npt.NDArray[np.float32]


@dataclass(slots=True)
class TrainingProgress:
    """Counters of a run."""

    step: int = 0
    tokens: int = 0  # clean tokens, padding included
    seconds: float = 0.0  # of training, over all parts of the run


@dataclass(frozen=True, slots=True)
class Pretrained:
    """A causal model; the weights are read on demand."""

    header: GGUFHeader
    name: str  # of the model that the weights come from
    config: NetworkConfig
    vocabulary: Vocabulary
    values: Mapping[str, Value]  # the metadata of shape and licence, which an adapted file keeps
    progress: TrainingProgress  # of the run that wrote the file; 0 for other files

    @property
    def licence(self) -> str:
        """Identifier of the licence, with its name and link if the file states them."""
        return " ".join(str(value.read()) for key, value in self.values.items() if key.startswith(LICENCE))

    def read(self, name: str) -> Weights:
        """A tensor by its name in GGUF files, heads in NeoX order."""
        if name not in self.header.tensors:
            raise ModelError(f"{self.header.path} lacks {name}: download it again")
        weights = dequantized(self.header, name)
        heads = rotated_heads(name, self.config)
        return permuted(weights, heads, to_neox=True) if heads else weights

    def network(self, pruned: PrunedVocabulary) -> DiffusionNetwork:
        """The network with the rows of a pruned vocabulary; raises as `read_pretrained` does."""
        network = DiffusionNetwork(replace(self.config, num_tokens=len(pruned.source_ids)))
        with torch.no_grad(), _explained_errors(self.name):
            for name, target in network.state_dict().items():
                stored = self.read(name)
                weights = pruned.rows(stored) if name in (EMBEDDING, OUTPUT) else stored
                if tuple(target.shape) != weights.shape:
                    raise ModelError(f"{self.name}: {name} has the shape {weights.shape}: download it again")
                target.copy_(torch.tensor(weights))
        return network


def read_pretrained(path: Path, licence: str = "") -> Pretrained:
    """Opens a GGUF file. `licence` is an identifier that replaces what the file states about its licence.

    Raises:
        InputFileError: a folder, or a file without a licence.
        ModelError: the file is missing or damaged.
        ModelUnsupportedError: another architecture or tokenizer, or a value of its metadata that is missing, not valid,
            or of an option that the network lacks.
    """
    if path.is_dir():
        raise InputFileError(f"{path} is a folder: make a GGUF file of it with dg-lsp models convert --type F16")
    with _explained_errors(path):
        return _read_gguf(path, licence)


@contextmanager
def _explained_errors(name: object) -> Iterator[None]:
    """Maps what values of another type, or numbers that do not belong together, raise."""
    try:
        yield
    except KeyError as error:
        raise ModelUnsupportedError(f"{name} lacks {error}: {_ADVICE}") from error
    except (ArithmeticError, AttributeError, IndexError, TypeError, ValueError) as error:
        raise ModelUnsupportedError(f"{name} has a configuration that is not valid ({error}): {_ADVICE}") from error


def rotated_heads(name: str, config: NetworkConfig) -> int:
    """The number of heads in a tensor whose rows are in another order in GGUF files; 0 for other tensors."""
    if config.architecture != "llama":
        return 0
    return {"attn_q.weight": config.heads, "attn_k.weight": config.kv_heads}.get(name.split(".", 2)[-1], 0)


def permuted(weights: Weights, heads: int, *, to_neox: bool) -> Weights:
    """Rows of a llama's queries or keys. Rotated pairs are neighbours in GGUF files, and half a head apart here."""
    shape = (heads, -1, 2) if to_neox else (heads, 2, -1)
    return weights.reshape(*shape, *weights.shape[1:]).swapaxes(1, 2).reshape(weights.shape)


def _read_gguf(path: Path, licence: str) -> Pretrained:
    header = read_header(path)
    architecture = header.architecture
    if architecture not in ARCHITECTURES:
        raise ModelUnsupportedError(f"{path} is of architecture {architecture or 'unknown'}: {_ADVICE}")

    def value(key: str, default: Any = None) -> Any:
        content = header.read(f"{architecture}.{key}", default)
        if content is None:
            raise KeyError(f"{architecture}.{key}")
        return content

    scaling = value("rope.scaling.type", "none")
    if scaling not in ("none", "linear") or f"{architecture}.expert_count" in header.values:
        raise ModelUnsupportedError(f"{path} has experts, or rotations scaled by {scaling}: {_ADVICE}")
    heads = int(value("attention.head_count"))
    width = int(value("embedding_length"))
    head_width = int(value("attention.key_length", width // heads))
    factors: tuple[float, ...] = ()
    if ROPE_FACTORS in header.tensors:
        factors = tuple(dequantized(header, ROPE_FACTORS).tolist())
    elif scaling == "linear":
        factors = (float(value("rope.scaling.factor", 1.0)),) * (head_width // 2)
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
    name = header.read("general.name", "") or path.stem
    if "dg.version" in header.values:  # `adapt` wrote the file
        name = header.read("general.base_model.0.name", name)
    progress = TrainingProgress(
        step=int(header.read("dg.training_steps", 0)),
        tokens=int(header.read("dg.tokens_seen", 0)),
        seconds=float(header.read("dg.training_seconds", 0.0)),
    )

    return Pretrained(header, name, config, read_vocabulary(header), _kept_values(header, licence), progress)


def _kept_values(header: GGUFHeader, licence: str) -> dict[str, Value]:
    kept = {key: value for key, value in header.values.items() if key.startswith(f"{header.architecture}.")}
    stated = {key: value for key, value in header.values.items() if key.startswith(LICENCE) and value.read()}
    kept |= {LICENCE: text(licence)} if licence else stated
    if LICENCE not in kept:
        raise InputFileError(f"{header.path} states no licence: pass --licence with the identifier of its card")
    return kept


def dequantized(header: GGUFHeader, name: str) -> Weights:
    """A tensor in float32; ModelUnsupportedError for a number format that the package gguf cannot read."""
    tensor = header.tensors[name]
    try:
        weights = gguf_files.quants.dequantize(header.rows(name), gguf_files.GGMLQuantizationType(tensor.kind.number))
    except (NotImplementedError, ValueError) as error:
        problem = f"{header.path}: weights in {tensor.kind.name} cannot be read for training: use a file in F16 or Q8_0"
        raise ModelUnsupportedError(problem) from error
    return np.asarray(weights, np.float32).reshape(tensor.shape)
