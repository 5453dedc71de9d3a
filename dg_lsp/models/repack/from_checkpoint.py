"""A Hugging Face checkpoint of DiffusionGemma, taken apart."""

import struct
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dg_lsp import gguf as v
from dg_lsp.errors import InputFileError, ModelUnsupportedError
from dg_lsp.gguf import BF16, BLOCK_BYTES, F16, F32, Tensor, TensorType, Value, vector
from dg_lsp.models.repack.description import Sampler, describe_diffusion
from dg_lsp.models.repack.geometry import MODEL_TYPE, Geometry
from dg_lsp.models.repack.names import (
    ARCHITECTURE,
    DECODER,
    ENCODER,
    LAYER_SCALAR,
    SELF_CONDITIONING,
    repacked_name,
)
from dg_lsp.models.repack.parts import Parts, check_whole
from dg_lsp.models.repack.safetensors import SavedTensor, read_checkpoint, read_json, widened
from dg_lsp.models.repack.vocabulary import vocabulary

FILE_TYPES = {F32: 0, F16: 1, BF16: 32}
"""Number formats that a checkpoint is written in, and llama.cpp's number of such a file."""
_ALWAYS_F32 = ("ffn_gate_inp.weight",)
"""The router: small, and a rounding that sends a token to another expert is not."""


def take_checkpoint(folder: Path, kind: TensorType | None = None) -> Parts:
    """The parts of a checkpoint directory, matrices in `kind`; without one as they are stored.

    Raises:
        InputFileError: files are missing.
        ModelBrokenError: a file is damaged, cut short, or lacks tensors.
        ModelUnsupportedError: another model, or a DiffusionGemma that llama.cpp's graph does not compute.
    """
    config = read_json(folder / "config.json")
    if config.get("model_type") != MODEL_TYPE:
        raise ModelUnsupportedError(
            f"{folder} holds a {config.get('model_type', 'model')} checkpoint, no {MODEL_TYPE}: "
            "convert it with llama.cpp's convert_hf_to_gguf.py"
        )
    saved = read_checkpoint(folder)
    kind = kind or _stored_kind(folder, saved)
    try:
        geometry = Geometry(config)
        shape = geometry.values()
    except (KeyError, TypeError, ValueError, AttributeError, struct.error) as error:
        raise ModelUnsupportedError(
            f"{folder}/config.json: {error} is missing or not what llama.cpp's {ARCHITECTURE} graph computes: "
            "use another checkpoint"
        ) from error
    _check_encoder(folder, saved)
    tensors = [tensor for name in sorted(saved) if (tensor := _tensor(saved[name], kind))]
    side = {tensor.name: tensor for tensor in tensors if tensor.name in SELF_CONDITIONING}
    body = {tensor.name: tensor for tensor in tensors if tensor.name not in side}
    body["rope_freqs.weight"] = vector("rope_freqs.weight", geometry.rope_divisors())
    check_whole(str(folder), body, side, len(geometry.sliding))
    values: dict[str, Value] = {
        "general.architecture": v.text(ARCHITECTURE),
        "general.type": v.text("model"),
        "general.name": v.text(folder.resolve().name),
        "general.file_type": v.uint32(FILE_TYPES[kind]),
        "general.quantization_version": v.uint32(2),
        **shape,
        **_tokenizer(folder, geometry),
    }
    return Parts(values, tuple(body.values()), tuple(side[name] for name in SELF_CONDITIONING))


def _stored_kind(folder: Path, saved: Mapping[str, SavedTensor]) -> TensorType:
    embedding = saved.get(f"{DECODER}embed_tokens.weight")
    if embedding is None:
        raise ModelUnsupportedError(
            f"{folder} holds no {DECODER}embed_tokens.weight: name the folder of a DiffusionGemma checkpoint"
        )
    return embedding.kind


def _tokenizer(folder: Path, geometry: Geometry) -> dict[str, Value]:
    """The vocabulary, and what follows from it."""
    template = folder / "chat_template.jinja"
    try:
        tokenizer = read_json(folder / "tokenizer.json")
        text = template.read_text(encoding="utf-8") if template.is_file() else ""
        found = vocabulary(tokenizer, geometry.vocab_size, text)
    except (KeyError, TypeError, ValueError, AttributeError, OSError) as error:
        raise InputFileError(
            f"{folder}/tokenizer.json is no tokenizer of Gemma's kind ({error}): download the checkpoint again"
        ) from error
    generation = folder / "generation_config.json"
    sampler = Sampler.of(read_json(generation)) if generation.is_file() else Sampler()
    tokens, kinds = found["tokenizer.ggml.tokens"].read(), found["tokenizer.ggml.token_type"].read()
    assert isinstance(tokens, list) and isinstance(kinds, list)
    return found | describe_diffusion(
        sampler,
        [str(token) for token in tokens],
        [int(number) for number in kinds],
        geometry.canvas_length,
        geometry.context_length,
    )


def _check_encoder(folder: Path, saved: Mapping[str, SavedTensor]) -> None:
    """The encoder has the decoder's weights; its layers' scales are saved apart, and llama.cpp has room for one."""
    for name, tensor in saved.items():
        twin = saved.get(name.replace(ENCODER, DECODER, 1)) if name.startswith(ENCODER) else None
        if twin is None or _is_same(tensor, twin):
            continue
        what = "scale" if name.endswith(LAYER_SCALAR) else "weights"
        raise ModelUnsupportedError(
            f"{folder}: {name} differs from the decoder's {what}, and llama.cpp's {ARCHITECTURE} graph has one for "
            "both: use the transformers backend"
        )


def _is_same(one: SavedTensor, other: SavedTensor) -> bool:
    if (one.shape, one.kind) != (other.shape, other.kind):
        return False
    pairs = zip(one.blocks(BLOCK_BYTES), other.blocks(BLOCK_BYTES), strict=True)
    return all(np.array_equal(mine, theirs) for mine, theirs in pairs)


def _tensor(saved: SavedTensor, kind: TensorType) -> Tensor | None:
    name = repacked_name(saved.name)
    if name is None:
        return None
    if len(saved.shape) == 1 or name.endswith(_ALWAYS_F32):
        kind = F32
    return Tensor(name, saved.shape, kind, partial(_blocks, saved, kind))


def _blocks(saved: SavedTensor, kind: TensorType) -> Iterable[memoryview]:
    """The tensor's bytes in another number format, a few megabytes at a time."""
    for block in saved.blocks(BLOCK_BYTES // F32.block_bytes):
        held = block if kind is saved.kind else _narrowed(widened(block, saved.kind), kind, saved.name)
        yield held.view(np.uint8).data


def _narrowed(numbers: npt.NDArray[np.float32], kind: TensorType, name: str) -> npt.NDArray[Any]:
    """To the nearest number of another format, ties to even."""
    if kind is F32:
        return numbers
    if kind is BF16:
        bits = numbers.view(np.uint32)
        return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype("<u2")
    with np.errstate(over="ignore"):
        half = numbers.astype("<f2")
    if not np.isfinite(half).all():
        raise ModelUnsupportedError(f"{name} holds numbers that F16 cannot: pass --type BF16")
    return half
