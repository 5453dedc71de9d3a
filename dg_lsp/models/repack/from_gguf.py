"""A GGUF of architecture `diffusion-gemma`, taken apart; weights stay as they are, bit by bit."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dg_lsp.errors import ModelBrokenError, ModelUnsupportedError
from dg_lsp.models.repack import names
from dg_lsp.models.repack.description import TRAINED_CANVAS, Sampler, describe_diffusion
from dg_lsp.models.repack.parts import Parts, check_whole
from dg_lsp.weights import values as v
from dg_lsp.weights.header import Header, StoredTensor, read_header
from dg_lsp.weights.values import Value
from dg_lsp.weights.writing import Tensor, copied

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


def take_gguf(path: Path) -> Parts:
    """The parts of a file in either pull request's naming.

    Raises:
        ModelNotFoundError: no such file.
        ModelBrokenError: no GGUF, damaged, cut short, or without tensors or metadata that the model needs.
        ModelUnsupportedError: another architecture, or an encoder that differs from the decoder.
    """
    header = read_header(path)
    _check_architecture(header)
    body, side, encoder_scales = _sorted(header)
    _check_scales(header, encoder_scales)
    num_layers = _Fields(header).number(f"{_OLD}block_count")
    check_whole(str(path), body, side, num_layers)
    return Parts(_values(header), tuple(body.values()), tuple(side[name] for name in names.SELF_CONDITIONING))


def _check_architecture(header: Header) -> None:
    architecture = header.architecture
    if architecture == names.DIFFUSION_ARCHITECTURE:
        return
    if architecture == names.ARCHITECTURE and "dg.self_conditioning" in header.values:
        problem = "is repacked already: use it as it is"
    elif architecture == names.ARCHITECTURE:
        problem = "is a plain Gemma 4, which denoises nothing: name a DiffusionGemma, or use it as a causal model"
    elif architecture == names.SIDE_ARCHITECTURE:
        problem = "is the side file of a repacked model: name the file beside it"
    else:
        problem = f"is of architecture {architecture or 'unknown'}, not {names.DIFFUSION_ARCHITECTURE}"
        problem += ": only DiffusionGemma has to be repacked"
    raise ModelUnsupportedError(f"{header.path} {problem}")


def _sorted(header: Header) -> tuple[dict[str, Tensor], dict[str, Tensor], list[StoredTensor]]:
    """The main file's tensors, the side file's, and the encoder's scales."""
    body: dict[str, Tensor] = {}
    side: dict[str, Tensor] = {}
    scales = []
    for tensor in header.tensors.values():
        stem = tensor.name.removesuffix(".weight")
        if new := names.GGUF_SELF_CONDITIONING.get(stem):
            side[new] = copied(header.path, tensor, new)
        elif stem.endswith(f".{names.ENCODER_SCALE}"):
            scales.append(tensor)
        else:
            body[tensor.name] = copied(header.path, tensor)
    return body, side, scales


def _check_scales(header: Header, scales: list[StoredTensor]) -> None:
    for encoder in scales:
        name = encoder.name.replace(names.ENCODER_SCALE, names.DECODER_SCALE)
        decoder = header.tensors.get(name)
        if decoder is None:
            raise ModelBrokenError(f"{header.path} lacks {name}: download or export it again")
        if not np.array_equal(header.rows(encoder.name), header.rows(name)):
            raise ModelUnsupportedError(
                f"{header.path}: {encoder.name} differs from {name}, and llama.cpp's {names.ARCHITECTURE} graph has "
                "one for both: use the checkpoint with the transformers backend"
            )


def _values(header: Header) -> dict[str, Value]:
    kept = {
        key.replace(_OLD, _NEW, 1) if key.startswith(_OLD) else key: value
        for key, value in header.values.items()
        if key not in _DROPPED
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

    header: Header

    @property
    def _values(self) -> Mapping[str, Value]:
        return self.header.values

    def _refusal(self, key: str) -> ModelBrokenError:
        return ModelBrokenError(f"{self.header.path}: {key} is missing or odd: download or export it again")

    def number(self, key: str) -> int:
        value = self._values[key].read() if key in self._values else None
        if not isinstance(value, int) or value < 1:
            raise self._refusal(key)
        return value

    def array(self, key: str) -> list[int | float | bool | str]:
        value = self._values[key].read() if key in self._values else None
        if not isinstance(value, list):
            raise self._refusal(key)
        return value
