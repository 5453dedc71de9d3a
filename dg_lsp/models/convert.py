"""Converts a DiffusionGemma to two GGUF files: one that llama.cpp runs as a Gemma 4, and a side file.

The side file holds the weights of the self-conditioning. Sources are checkpoint folders, the `diffusion-gemma` files of
llama.cpp's pull requests 24423 and 24427, and files that were converted before. The `dg.*` keys are those of
docs/architecture.md.
"""

import contextlib
import hashlib
import os
import re
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dg_lsp import gguf as v
from dg_lsp.errors import InputFileError, ModelBrokenError, ModelNotFoundError, ModelUnsupportedError, UsageError
from dg_lsp.gguf import (
    BF16,
    BLOCK_BYTES,
    F16,
    F32,
    GGUFHeader,
    StoredTensor,
    Tensor,
    TensorType,
    Value,
    copied,
    read_header,
    vector,
    write_gguf,
)
from dg_lsp.models.checkpoint import (
    ARCHITECTURE,
    CONTROL,
    DECODER,
    DECODER_SCALE,
    DIFFUSION_ARCHITECTURE,
    EMBEDDING,
    ENCODER,
    ENCODER_SCALE,
    GGUF_SELF_CONDITIONING,
    LAYER_SCALAR,
    LAYER_TENSORS,
    MODEL_TYPE,
    SELF_CONDITIONING,
    SIDE_ARCHITECTURE,
    SIDE_SUFFIX,
    USER_DEFINED,
    Geometry,
    SavedTensor,
    gguf_name,
    read_checkpoint,
    read_json,
    to_float32,
    vocabulary,
)

FILE_TYPES = {F32: 0, F16: 1, BF16: 32}
"""Number formats that a checkpoint is converted to without llama.cpp, and llama.cpp's number of such a file."""

_TRAINED_CANVAS = 256
_SHORTER_CANVASES = (16, 32, 64, 128)
"""The forward pass accepts any length; the quality of completions at shorter lengths was not measured."""
_MAX_PROMPT_TOKENS = 4096
"""The model accepts 262,144, but a completion has to stay fast."""
_END_TOKENS = ("<eos>", "<turn|>", "<|tool_response>")
"""The tokens 1, 106 and 50 of the checkpoint's generation_config.json."""
_SENTINELS = (("<|", ">"), ("<", "|>"))
"""Start and end of a chat's special tokens; some of them (channel, tool calls) are user-defined, not control tokens."""
_MAIN_EMBEDDING = "token_embd.weight"
_SIDE_KEY, _SIDE_SHA256_KEY = "dg.self_conditioning", "dg.self_conditioning.sha256"


@dataclass(frozen=True, slots=True)
class SamplerDefaults:
    """The sampler settings of a checkpoint; the defaults are those of the published generation_config.json."""

    entropy_bound: float = 0.1
    t_max: float = 0.8
    t_min: float = 0.4
    max_denoising_steps: int = 48
    stability_threshold: int = 1
    stop_confidence: float = 0.005
    """Nats: a stable draft with a lower mean entropy is the result."""
    end_ids: tuple[int, ...] = ()
    """Empty: those of `<eos>`, `<turn|>` and `<|tool_response>` that the vocabulary has."""


def read_sampler_defaults(folder: Path) -> SamplerDefaults:
    """The settings in a checkpoint's generation_config.json; defaults for those that are missing.

    Raises:
        InputFileError: the file is unreadable or not a JSON object.
    """
    path = folder / "generation_config.json"
    config = read_json(path) if path.is_file() else {}
    names = ("t_max", "t_min", "max_denoising_steps", "stability_threshold")
    settings: dict[str, Any] = {name: config.get(name) for name in names}
    settings["stop_confidence"] = config.get("confidence_threshold")
    settings["entropy_bound"] = (config.get("sampler_config") or {}).get("entropy_bound")
    end_ids = config.get("eos_token_id")
    settings["end_ids"] = tuple(end_ids) if isinstance(end_ids, list) else end_ids if end_ids is None else (end_ids,)
    return SamplerDefaults(**{name: value for name, value in settings.items() if value is not None})


def diffusion_metadata(
    sampler: SamplerDefaults, tokenizer: Mapping[str, Value], canvas_length: int, context_length: int
) -> dict[str, Value]:
    """The `dg.*` metadata of the main file, except for the two keys of its side file."""
    tokens, kinds = (tokenizer[f"tokenizer.ggml.{key}"].read() for key in ("tokens", "token_type"))
    assert isinstance(tokens, list) and isinstance(kinds, list)
    end_ids = sampler.end_ids or tuple(tokens.index(token) for token in _END_TOKENS if token in tokens)
    banned_ids = tuple(i for i, token in enumerate(tokens) if _is_special(str(token), kinds[i]) and i not in end_ids)
    lengths = (*(length for length in _SHORTER_CANVASES if length < canvas_length), canvas_length)
    return {
        "dg.version": v.uint32(1),
        "dg.noise": v.text("uniform"),
        "dg.prompt_format": v.text("instruct"),
        "dg.template": v.text("gemma4"),
        "dg.canvas_lengths": v.text(",".join(map(str, lengths))),
        "dg.max_prompt_tokens": v.uint32(max(1, min(_MAX_PROMPT_TOKENS, context_length - 2 * canvas_length))),
        "dg.entropy_bound": v.float32(sampler.entropy_bound),
        "dg.t_max": v.float32(sampler.t_max),
        "dg.t_min": v.float32(sampler.t_min),
        "dg.max_denoising_steps": v.uint32(sampler.max_denoising_steps),
        "dg.stability_threshold": v.uint32(sampler.stability_threshold),
        "dg.stop_confidence": v.float32(sampler.stop_confidence),
        "dg.end_token_ids": v.text(",".join(map(str, end_ids))),
        "dg.banned_token_ids": v.text(",".join(map(str, banned_ids))),
    }


def _is_special(token: str, kind: object) -> bool:
    if kind == CONTROL:
        return True
    return kind == USER_DEFINED and any(token.startswith(start) and token.endswith(end) for start, end in _SENTINELS)


@dataclass(frozen=True, slots=True)
class ModelParts:
    """The contents of both files; the weights are read when they are written."""

    values: Mapping[str, Value]
    """The metadata of the main file, except for the two keys of its side file."""
    main: tuple[Tensor, ...]
    side: tuple[Tensor, ...]

    @property
    def size(self) -> int:
        """Bytes of all weights."""
        return self.main_size + sum(tensor.size for tensor in self.side)

    @property
    def main_size(self) -> int:
        """Bytes of the weights in the main file."""
        return sum(tensor.size for tensor in self.main)

    @property
    def embedding_type(self) -> TensorType:
        """Number format of the token embeddings."""
        return next(tensor.kind for tensor in self.main if tensor.name == _MAIN_EMBEDDING)

    @property
    def is_quantized(self) -> bool:
        """Whether weights are stored in blocks, so that another number format would round them again."""
        return any(tensor.kind.block_weights > 1 for tensor in self.main)


def _make_parts(
    name: object, values: Mapping[str, Value], main: Mapping[str, Tensor], side: Mapping[str, Tensor], num_layers: int
) -> ModelParts:
    """Checks that all tensors are there; `attn_v` and the scale of layers may be missing."""
    optional = {"attn_v.weight", f"{DECODER_SCALE}.weight"}
    required = [_MAIN_EMBEDDING, "output_norm.weight", "rope_freqs.weight"]
    required += [f"blk.{i}.{tensor}" for i in range(num_layers) for tensor in LAYER_TENSORS if tensor not in optional]
    missing = [tensor for tensor in required if tensor not in main]
    missing += [tensor for tensor in SELF_CONDITIONING if tensor not in side]
    if missing:
        raise ModelBrokenError(
            f"{name} lacks {len(missing)} tensors of a DiffusionGemma ({missing[0]}): download or export it again"
        )
    return ModelParts(values, tuple(main.values()), tuple(side[tensor] for tensor in SELF_CONDITIONING))


# GGUF files

_NUMBERED = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")
_OLD, _NEW = f"{DIFFUSION_ARCHITECTURE}.", f"{ARCHITECTURE}."
_CANVAS_KEYS = ("diffusion.canvas_length", f"{_OLD}diffusion.canvas_length", f"{_OLD}canvas_length")
_DROPPED_KEYS = (
    "general.alignment",  # the new file has the default alignment
    f"{_OLD}attention.causal",  # false there; prompts are encoded causally, and the runtime sets it for each pass
    *_CANVAS_KEYS,
)
_DEFAULT_VALUES = {
    f"{_NEW}attention.shared_kv_layers": v.uint32(0),
    f"{_NEW}embedding_length_per_layer_input": v.uint32(0),
}
"""Keys that llama.cpp's loader requires and the source may lack."""


def is_repacked(header: GGUFHeader) -> bool:
    """Whether the file was converted before, so that it has a side file."""
    return header.architecture == ARCHITECTURE and _SIDE_KEY in header.values


def read_gguf(path: Path) -> ModelParts:
    """The parts of a `diffusion-gemma` file of either pull request; of all its shards if `path` is one of several.

    Raises:
        ModelNotFoundError: the file or one of its shards is missing.
        ModelBrokenError: damaged, cut short, or without required tensors or metadata.
        ModelUnsupportedError: another architecture, or an encoder that differs from the decoder.
    """
    shards = _read_shards(path)
    header = shards[0]
    _check_architecture(header)
    main: dict[str, Tensor] = {}
    side: dict[str, Tensor] = {}
    for shard, tensor in _stored_tensors(shards):
        stem = tensor.name.removesuffix(".weight")
        if side_name := GGUF_SELF_CONDITIONING.get(stem):
            side[side_name] = copied(shard.path, tensor, side_name)
        elif not stem.endswith(f".{ENCODER_SCALE}"):
            main[tensor.name] = copied(shard.path, tensor)
    _check_encoder_scales(shards)
    return _make_parts(path, _convert_values(header), main, side, _read_number(header, f"{_OLD}block_count"))


def read_repacked(header: GGUFHeader) -> ModelParts:
    """The parts of a file that was converted before, to be quantized.

    Raises:
        ModelBrokenError: its side file is missing, damaged, or belongs to another model.
    """
    side = header.path.with_name(Path(str(header.values[_SIDE_KEY].read())).name)
    if not side.is_file():
        raise ModelBrokenError(f"{header.path} lacks its side file {side.name}: put it beside it, or repack again")
    if _SIDE_SHA256_KEY not in header.values or header.values[_SIDE_SHA256_KEY].read() != _sha256(side):
        raise ModelBrokenError(f"{side} is not the side file of {header.path.name}: repack the model again")
    return ModelParts(
        {key: value for key, value in header.values.items() if key not in (_SIDE_KEY, _SIDE_SHA256_KEY)},
        tuple(copied(header.path, tensor) for tensor in header.tensors.values()),
        tuple(copied(side, tensor) for tensor in read_header(side).tensors.values()),
    )


def _read_shards(path: Path) -> tuple[GGUFHeader, ...]:
    """The headers of all files of a model, the one with the metadata first."""
    header = read_header(path)
    count = header.values["split.count"].read() if "split.count" in header.values else 1
    if count == 1:
        return (header,)
    match = _NUMBERED.fullmatch(path.name)
    if match is None or not isinstance(count, int) or int(match[3]) != count:
        raise ModelBrokenError(f"{path} is one of {count} files, but was renamed: restore its name")
    paths = [path.with_name(f"{match[1]}-{number:05}-of-{count:05}.gguf") for number in range(1, count + 1)]
    if missing := [shard.name for shard in paths if not shard.is_file()]:
        raise ModelNotFoundError(f"{path.parent} lacks {missing[0]} ({len(missing)} of {count} files): download it")
    return tuple(read_header(shard) for shard in paths)


def _check_architecture(header: GGUFHeader) -> None:
    architecture = header.architecture
    if architecture == DIFFUSION_ARCHITECTURE:
        return
    if is_repacked(header):
        problem = "is repacked already: use it as it is"
    elif architecture == ARCHITECTURE:
        problem = "is a plain Gemma 4, not a diffusion model: name a DiffusionGemma, or use it as a causal model"
    elif architecture == SIDE_ARCHITECTURE:
        problem = "is the side file of a repacked model: name the file beside it"
    else:
        problem = f"is of architecture {architecture or 'unknown'}, not {DIFFUSION_ARCHITECTURE}"
        problem += ": only DiffusionGemma has to be repacked"
    raise ModelUnsupportedError(f"{header.path} {problem}")


def _stored_tensors(shards: Sequence[GGUFHeader]) -> Iterator[tuple[GGUFHeader, StoredTensor]]:
    return ((shard, tensor) for shard in shards for tensor in shard.tensors.values())


def _check_encoder_scales(shards: Sequence[GGUFHeader]) -> None:
    scales = {
        tensor.name: shard.rows(tensor.name)
        for shard, tensor in _stored_tensors(shards)
        if tensor.name.removesuffix(".weight").endswith((ENCODER_SCALE, DECODER_SCALE))
    }
    for name, scale in scales.items():
        decoder_name = name.replace(ENCODER_SCALE, DECODER_SCALE)
        if decoder_name not in scales:
            raise ModelBrokenError(f"{shards[0].path} lacks {decoder_name}: download or export it again")
        if not np.array_equal(scale, scales[decoder_name]):
            raise ModelUnsupportedError(
                f"{shards[0].path}: {name} differs from {decoder_name}, and llama.cpp's {ARCHITECTURE} graph has "
                "one for both: use the checkpoint with the transformers backend"
            )


def _convert_values(header: GGUFHeader) -> dict[str, Value]:
    kept = {
        key.replace(_OLD, _NEW, 1) if key.startswith(_OLD) else key: value
        for key, value in header.values.items()
        if key not in _DROPPED_KEYS and not key.startswith("split.")
    }
    kept["general.architecture"] = v.text(ARCHITECTURE)
    for key in ("tokenizer.ggml.tokens", "tokenizer.ggml.token_type"):
        if key not in header.values or not isinstance(header.values[key].read(), list):
            raise _invalid_key(header, key)
    canvas = next((_read_number(header, key) for key in _CANVAS_KEYS if key in header.values), _TRAINED_CANVAS)
    context_length = _read_number(header, f"{_OLD}context_length")
    return {**_DEFAULT_VALUES, **kept, **diffusion_metadata(SamplerDefaults(), header.values, canvas, context_length)}


def _read_number(header: GGUFHeader, key: str) -> int:
    value = header.values[key].read() if key in header.values else None
    if not isinstance(value, int) or value < 1:
        raise _invalid_key(header, key)
    return value


def _invalid_key(header: GGUFHeader, key: str) -> ModelBrokenError:
    return ModelBrokenError(f"{header.path}: {key} is missing or invalid: download or export it again")


# checkpoints

_ALWAYS_F32 = ("ffn_gate_inp.weight",)
"""The router: it is small, and rounding it would send tokens to other experts."""


def convert_checkpoint(folder: Path, kind: TensorType | None = None) -> ModelParts:
    """The parts of a checkpoint folder, with matrices in `kind`; by default in the stored number format.

    Raises:
        InputFileError: files are missing.
        ModelBrokenError: a file is damaged, cut short, or lacks tensors.
        ModelUnsupportedError: another model, or a DiffusionGemma that llama.cpp's graph does not compute.
    """
    config = read_json(folder / "config.json")
    if config.get("model_type") != MODEL_TYPE:
        raise ModelUnsupportedError(
            f"{folder} holds a {config.get('model_type', 'model')} checkpoint, not a {MODEL_TYPE}: "
            "convert it with llama.cpp's convert_hf_to_gguf.py"
        )
    saved = read_checkpoint(folder)
    if EMBEDDING not in saved:
        raise ModelUnsupportedError(f"{folder} holds no {EMBEDDING}: name the folder of a DiffusionGemma checkpoint")
    kind = kind or saved[EMBEDDING].kind
    try:
        geometry = Geometry(config)
        sizes = geometry.values()
    except (KeyError, TypeError, ValueError, AttributeError, struct.error) as error:
        raise ModelUnsupportedError(
            f"{folder}/config.json: {error} is missing or not what llama.cpp's {ARCHITECTURE} graph computes: "
            "use another checkpoint"
        ) from error
    _check_encoder(folder, saved)
    tensors = [tensor for name in sorted(saved) if (tensor := _convert_tensor(saved[name], kind))]
    side = {tensor.name: tensor for tensor in tensors if tensor.name in SELF_CONDITIONING}
    main = {tensor.name: tensor for tensor in tensors if tensor.name not in side}
    main["rope_freqs.weight"] = vector("rope_freqs.weight", geometry.rope_divisors())
    values: dict[str, Value] = {
        "general.architecture": v.text(ARCHITECTURE),
        "general.type": v.text("model"),
        "general.name": v.text(folder.resolve().name),
        "general.file_type": v.uint32(FILE_TYPES[kind]),
        "general.quantization_version": v.uint32(2),
        **sizes,
        **_convert_tokenizer(folder, geometry),
    }
    return _make_parts(folder, values, main, side, len(geometry.sliding))


def _convert_tokenizer(folder: Path, geometry: Geometry) -> dict[str, Value]:
    """The `tokenizer.*` and `dg.*` metadata."""
    template = folder / "chat_template.jinja"
    try:
        tokenizer = read_json(folder / "tokenizer.json")
        chat_template = template.read_text(encoding="utf-8") if template.is_file() else ""
        values = vocabulary(tokenizer, geometry.vocab_size, chat_template)
    except (KeyError, TypeError, ValueError, AttributeError, OSError) as error:
        raise InputFileError(
            f"{folder}/tokenizer.json is not a tokenizer like that of Gemma ({error}): download the checkpoint again"
        ) from error
    sampler = read_sampler_defaults(folder)
    return values | diffusion_metadata(sampler, values, geometry.canvas_length, geometry.context_length)


def _check_encoder(folder: Path, saved: Mapping[str, SavedTensor]) -> None:
    """The encoder shares its weights with the decoder. Scales of layers are saved twice; llama.cpp has one of each."""
    for name, tensor in saved.items():
        decoder = saved.get(name.replace(ENCODER, DECODER, 1)) if name.startswith(ENCODER) else None
        if decoder is None or _is_equal(tensor, decoder):
            continue
        content = "scale" if name.endswith(LAYER_SCALAR) else "weights"
        raise ModelUnsupportedError(
            f"{folder}: {name} differs from the decoder's {content}, and llama.cpp's {ARCHITECTURE} graph has one for "
            "both: use the transformers backend"
        )


def _is_equal(left: SavedTensor, right: SavedTensor) -> bool:
    if (left.shape, left.kind) != (right.shape, right.kind):
        return False
    pairs = zip(left.blocks(BLOCK_BYTES), right.blocks(BLOCK_BYTES), strict=True)
    return all(np.array_equal(one, other) for one, other in pairs)


def _convert_tensor(saved: SavedTensor, kind: TensorType) -> Tensor | None:
    name = gguf_name(saved.name)
    if name is None:
        return None
    if len(saved.shape) == 1 or name.endswith(_ALWAYS_F32):
        kind = F32
    return Tensor(name, saved.shape, kind, partial(_convert_blocks, saved, kind))


def _convert_blocks(saved: SavedTensor, kind: TensorType) -> Iterable[memoryview]:
    """The bytes of a tensor in another number format, a few megabytes at a time."""
    for block in saved.blocks(BLOCK_BYTES // F32.block_bytes):
        converted = block if kind is saved.kind else _round(to_float32(block, saved.kind), kind, saved.name)
        yield converted.view(np.uint8).data


def _round(numbers: npt.NDArray[np.float32], kind: TensorType, name: str) -> npt.NDArray[Any]:
    """The nearest numbers of another format, ties to even."""
    if kind is F32:
        return numbers
    if kind is BF16:
        bits = numbers.view(np.uint32)
        return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype("<u2")
    with np.errstate(over="ignore"):
        half = numbers.astype("<f2")
    if not np.isfinite(half).all():
        raise ModelUnsupportedError(f"{name} holds numbers that are too large for F16: pass --type BF16")
    return half


# output

_MARGIN = 64 << 20
"""Bytes for metadata and padding."""

Quantize = Callable[[Path, Path], object]
"""Writes a quantized copy of the first file to the second path."""
ShowBytes = Callable[[int], object]
"""Called with the number of bytes written since the last call."""


def side_path(target: Path) -> Path:
    """The path of a main file's side file."""
    return target.with_name(target.name.removesuffix(".gguf") + SIDE_SUFFIX)


def check_target(target: Path, needed: int) -> None:
    """Checks name and folder of the output, and that there is space for `needed` bytes of weights.

    Raises:
        UsageError: the file exists, or its name does not end in .gguf.
        InputFileError: the folder does not exist or is too full.
    """
    if not target.name.endswith(".gguf") or target.name.endswith(SIDE_SUFFIX):
        raise UsageError(f"{target} is not a name for a model: let it end in .gguf")
    for path in (target, side_path(target)):
        if path.exists():
            raise UsageError(f"{path} exists already: remove it, or pass another name with -o")
    if not target.parent.is_dir():
        raise InputFileError(f"{target.parent} is not a folder: create it, or pass another name with -o")
    free = shutil.disk_usage(target.parent).free
    if free < needed + _MARGIN:
        raise InputFileError(
            f"{target.parent} needs {(needed + _MARGIN) / 1e9:,.1f} GB free and has {free / 1e9:,.1f}: "
            "free some space, or pass another folder with -o"
        )


def write_model(
    parts: ModelParts, target: Path, show_bytes: ShowBytes = lambda _: None, quantize: Quantize | None = None
) -> None:
    """Writes both files under temporary names and renames them at the end; an interruption leaves no files.

    Raises:
        ModelBrokenError: the source ended too early.
        InputFileError: no space, or no permission to write there.
        DgLspError: errors of `quantize`.
    """
    side = side_path(target)
    with _explained_disk_errors(target), contextlib.ExitStack() as stack:
        new_side = stack.enter_context(_temporary_file(side))
        with new_side.open("wb") as file:
            write_gguf(file, {"general.architecture": v.text(SIDE_ARCHITECTURE)}, parts.side, show_bytes)
        values = {
            **parts.values,
            _SIDE_KEY: v.text(side.name),
            _SIDE_SHA256_KEY: v.text(_sha256(new_side)),
        }
        new = stack.enter_context(_temporary_file(target))
        with new.open("wb") as file:
            write_gguf(file, values, parts.main, show_bytes)
        if quantize:
            quantized = stack.enter_context(_temporary_file(target))
            quantize(new, quantized)
            new = quantized
        _rename(new_side, side)
        _rename(new, target)


@contextlib.contextmanager
def _temporary_file(target: Path) -> Iterator[Path]:
    """An empty file in the folder of `target`; removed at the end unless it was renamed."""
    number, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    os.close(number)
    try:
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


def _rename(temporary: Path, target: Path) -> None:
    """Renames a file once its content is on the disk."""
    with temporary.open("r+b") as file:
        os.fsync(file.fileno())
    temporary.chmod(0o644)
    temporary.replace(target)


@contextlib.contextmanager
def _explained_disk_errors(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InputFileError(
            f"{target} cannot be written: {reason}; free some space, or pass another name with -o"
        ) from error


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
