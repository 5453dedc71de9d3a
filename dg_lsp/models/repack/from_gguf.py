"""A GGUF of architecture `diffusion-gemma`, taken apart; weights stay as they are, bit by bit."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dg_lsp import gguf as v
from dg_lsp.errors import ModelBrokenError, ModelUnsupportedError
from dg_lsp.gguf import GGUFHeader, StoredTensor, Tensor, Value, copied, read_header
from dg_lsp.models.repack import names
from dg_lsp.models.repack.description import TRAINED_CANVAS, Sampler, describe_diffusion
from dg_lsp.models.repack.parts import Parts, check_whole
from dg_lsp.models.repack.shards import read_shards

_OLD, _NEW = f"{names.DIFFUSION_ARCHITECTURE}.", f"{names.ARCHITECTURE}."
_CANVAS_KEYS = ("diffusion.canvas_length", f"{_OLD}diffusion.canvas_length", f"{_OLD}canvas_length")
_DROPPED = (
    "general.alignment",  # the new file has the common one
    f"{_OLD}attention.causal",  # false there; the prompt is encoded causally, and the runtime says when not
    *_CANVAS_KEYS,
)
_DEFAULTS = {
    f"{_NEW}attention.shared_kv_layers": v.uint32(0),
    f"{_NEW}embedding_length_per_layer_input": v.uint32(0),
}
"""What llama.cpp's loader asks for, where the file leaves it out."""
_SIDE, _SIDE_SHA256 = "dg.self_conditioning", "dg.self_conditioning.sha256"


def take_gguf(path: Path) -> Parts:
    """The parts of a file in either pull request's naming, in one piece or split.

    Raises:
        ModelNotFoundError: no such file, or a piece of it is missing.
        ModelBrokenError: no GGUF, damaged, cut short, or without tensors or metadata that the model needs.
        ModelUnsupportedError: another architecture, or an encoder that differs from the decoder.
    """
    shards = read_shards(path)
    _check_architecture(shards[0])
    body, side = _sorted(shards)
    _check_scales(shards)
    check_whole(str(path), body, side, _Fields(shards[0]).number(f"{_OLD}block_count"))
    return Parts(_values(shards[0]), tuple(body.values()), tuple(side[name] for name in names.SELF_CONDITIONING))


def is_repacked(header: GGUFHeader) -> bool:
    """The file has its side file already."""
    return header.architecture == names.ARCHITECTURE and _SIDE in header.values


def take_repacked(header: GGUFHeader) -> Parts:
    """The parts of a file that is repacked already, to be quantized.

    Raises:
        ModelBrokenError: its side file is missing, damaged, or another model's.
    """
    side = header.path.with_name(Path(str(header.values[_SIDE].read())).name)
    if not side.is_file():
        raise ModelBrokenError(f"{header.path} lacks its side file {side.name}: put it beside it, or repack again")
    with side.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if _SIDE_SHA256 not in header.values or header.values[_SIDE_SHA256].read() != digest:
        raise ModelBrokenError(f"{side} is not the side file of {header.path.name}: repack the model again")
    values = {key: value for key, value in header.values.items() if key not in (_SIDE, _SIDE_SHA256)}
    return Parts(
        values,
        tuple(copied(header.path, tensor) for tensor in header.tensors.values()),
        tuple(copied(side, tensor) for tensor in read_header(side).tensors.values()),
    )


def _check_architecture(header: GGUFHeader) -> None:
    architecture = header.architecture
    if architecture == names.DIFFUSION_ARCHITECTURE:
        return
    if is_repacked(header):
        problem = "is repacked already: use it as it is"
    elif architecture == names.ARCHITECTURE:
        problem = "is a plain Gemma 4, which denoises nothing: name a DiffusionGemma, or use it as a causal model"
    elif architecture == names.SIDE_ARCHITECTURE:
        problem = "is the side file of a repacked model: name the file beside it"
    else:
        problem = f"is of architecture {architecture or 'unknown'}, not {names.DIFFUSION_ARCHITECTURE}"
        problem += ": only DiffusionGemma has to be repacked"
    raise ModelUnsupportedError(f"{header.path} {problem}")


def _stored(shards: Sequence[GGUFHeader]) -> Iterator[tuple[GGUFHeader, StoredTensor]]:
    return ((shard, tensor) for shard in shards for tensor in shard.tensors.values())


def _sorted(shards: Sequence[GGUFHeader]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The main file's tensors and the side file's."""
    body: dict[str, Tensor] = {}
    side: dict[str, Tensor] = {}
    for shard, tensor in _stored(shards):
        stem = tensor.name.removesuffix(".weight")
        if new := names.GGUF_SELF_CONDITIONING.get(stem):
            side[new] = copied(shard.path, tensor, new)
        elif not stem.endswith(f".{names.ENCODER_SCALE}"):
            body[tensor.name] = copied(shard.path, tensor)
    return body, side


def _check_scales(shards: Sequence[GGUFHeader]) -> None:
    scales = {
        tensor.name: shard.rows(tensor.name)
        for shard, tensor in _stored(shards)
        if tensor.name.removesuffix(".weight").endswith((names.ENCODER_SCALE, names.DECODER_SCALE))
    }
    for name, encoder in scales.items():
        twin = name.replace(names.ENCODER_SCALE, names.DECODER_SCALE)
        if twin not in scales:
            raise ModelBrokenError(f"{shards[0].path} lacks {twin}: download or export it again")
        if not np.array_equal(encoder, scales[twin]):
            raise ModelUnsupportedError(
                f"{shards[0].path}: {name} differs from {twin}, and llama.cpp's {names.ARCHITECTURE} graph has "
                "one for both: use the checkpoint with the transformers backend"
            )


def _values(header: GGUFHeader) -> dict[str, Value]:
    kept = {
        key.replace(_OLD, _NEW, 1) if key.startswith(_OLD) else key: value
        for key, value in header.values.items()
        if key not in _DROPPED and not key.startswith("split.")
    }
    kept["general.architecture"] = v.text(names.ARCHITECTURE)
    fields = _Fields(header)
    canvas = next((fields.number(key) for key in _CANVAS_KEYS if key in header.values), TRAINED_CANVAS)
    described = describe_diffusion(
        Sampler(),
        [str(token) for token in fields.array("tokenizer.ggml.tokens")],
        [int(kind) for kind in fields.array("tokenizer.ggml.token_type")],
        canvas,
        fields.number(f"{_OLD}context_length"),
    )
    return {**_DEFAULTS, **kept, **described}


@dataclass(frozen=True, slots=True)
class _Fields:
    """Metadata that must be there."""

    header: GGUFHeader

    def _refusal(self, key: str) -> ModelBrokenError:
        return ModelBrokenError(f"{self.header.path}: {key} is missing or odd: download or export it again")

    def number(self, key: str) -> int:
        value = self.header.values[key].read() if key in self.header.values else None
        if not isinstance(value, int) or value < 1:
            raise self._refusal(key)
        return value

    def array(self, key: str) -> list[int | float | bool | str]:
        value = self.header.values[key].read() if key in self.header.values else None
        if not isinstance(value, list):
            raise self._refusal(key)
        return value
