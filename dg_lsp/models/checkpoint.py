"""A Hugging Face checkpoint directory of DiffusionGemma: what it says of itself, before any weight is loaded.

The description is the one that a GGUF repacked from it gets, so that both runtimes ask the model the same way.
"""

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

from dg_lsp.canvas.spec import ModelSpec
from dg_lsp.errors import InputFileError, ModelBrokenError, ModelNotFoundError, ModelUnsupportedError
from dg_lsp.models.diffusiongemma import describe_uniform
from dg_lsp.models.repack.description import Sampler, describe_diffusion
from dg_lsp.models.repack.safetensors import read_checkpoint, read_json
from dg_lsp.models.repack.vocabulary import CONTROL, vocabulary
from dg_lsp.weights.checkpoint import Checkpoint
from dg_lsp.weights.kinds import BF16, F16, F32

CONFIGURATION = "config.json"
"""What makes a directory a checkpoint."""
MODEL_TYPE = "diffusion_gemma"
_EMBEDDING = "model.decoder.embed_tokens.weight"
_IGNORED = ("model.encoder.vision_tower.", "model.encoder.embed_vision.")
_MATRICES = ("_proj.weight", "experts.gate_up_proj", "experts.down_proj")
_STORED = {F32: "float32", F16: "float16", BF16: "bfloat16"}


def read_folder(folder: Path, name: str = "") -> tuple[Checkpoint, ModelSpec]:
    """Reads configuration, vocabulary and the weights' headers; without a name the folder's is the model's.

    Raises:
        ModelNotFoundError: the directory holds no checkpoint.
        ModelBrokenError: a file is missing, damaged or cut short.
        ModelUnsupportedError: another model, or odd settings.
    """
    if not (folder / CONFIGURATION).is_file():
        raise ModelNotFoundError(
            f"{folder} is a directory without {CONFIGURATION}: name a GGUF file, or the directory of a checkpoint"
        )
    try:
        return _read(folder, name or folder.resolve().name)
    except InputFileError as error:
        raise ModelBrokenError(str(error)) from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelUnsupportedError(
            f"{folder}: its configuration or tokenizer is none of {MODEL_TYPE} ({error}): download it again"
        ) from error


def _read(folder: Path, name: str) -> tuple[Checkpoint, ModelSpec]:
    config = read_json(folder / CONFIGURATION)
    if config.get("model_type") != MODEL_TYPE:
        raise ModelUnsupportedError(
            f"{folder} holds a {config.get('model_type', 'model')} checkpoint: transformers runs {MODEL_TYPE} here, "
            "other models are used as GGUF files"
        )
    saved = read_checkpoint(folder)
    if _EMBEDDING not in saved:
        raise ModelBrokenError(f"{folder} holds no {_EMBEDDING}: download it again")
    spec, special_ids = _described(folder, name, config)
    texts = [tensor for tensor in saved.values() if not tensor.name.startswith(_IGNORED)]
    checkpoint = Checkpoint(
        folder=folder,
        special_ids=special_ids,
        size_bytes=sum(path.stat().st_size for path in {tensor.path for tensor in saved.values()}),
        num_weights=_count(texts),
        num_vectors=_count(tensor for tensor in texts if not tensor.name.endswith(_MATRICES)),
        stored_type=_STORED[saved[_EMBEDDING].kind],
    )
    return checkpoint, spec


def _count(tensors: Any) -> int:
    return sum(prod(tensor.shape) for tensor in tensors)


def _described(folder: Path, name: str, config: Mapping[str, Any]) -> tuple[ModelSpec, frozenset[int]]:
    text = config["text_config"]
    vocab_size = int(text["vocab_size"])
    found = vocabulary(read_json(folder / "tokenizer.json"), vocab_size)
    tokens, kinds = (found[f"tokenizer.ggml.{key}"].read() for key in ("tokens", "token_type"))
    assert isinstance(tokens, list) and isinstance(kinds, list)
    generation = folder / "generation_config.json"
    sampler = Sampler.of(read_json(generation)) if generation.is_file() else Sampler()
    length, room = int(config.get("canvas_length") or 256), int(text["max_position_embeddings"])
    values = describe_diffusion(sampler, [str(token) for token in tokens], [int(kind) for kind in kinds], length, room)
    metadata = {key: str(value.read()) for key, value in values.items()}
    spec = describe_uniform(metadata, vocab_size, name)
    control = {i for i, kind in enumerate(kinds) if kind == CONTROL}
    return spec, frozenset({*control, *spec.banned_ids, *spec.end_ids})
