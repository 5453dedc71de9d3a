"""What a repacked DiffusionGemma says of itself: the `dg.*` keys that docs/architecture.md names."""

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
    ProgressCallback,
    StoredTensor,
    Tensor,
    TensorType,
    Value,
    copied,
    read_header,
    vector,
    write_gguf,
)
from dg_lsp.models import checkpoint
from dg_lsp.models.checkpoint import (
    ARCHITECTURE,
    DECODER,
    DECODER_SCALE,
    ENCODER,
    LAYER_SCALAR,
    LAYER_TENSORS,
    MODEL_TYPE,
    SELF_CONDITIONING,
    SIDE_ARCHITECTURE,
    SIDE_SUFFIX,
    Geometry,
    SavedTensor,
    read_checkpoint,
    read_json,
    repacked_name,
    vocabulary,
    widened,
)

TRAINED_CANVAS = 256
SHORTER_CANVASES = (16, 32, 64, 128)
"""The forward pass takes any length; what fills are worth at shorter ones than the trained one was not measured."""
MAX_PROMPT_TOKENS = 4096
"""Far less than the model takes (262,144): what a keystroke may cost is bounded by what an editor's window is worth."""
END_TOKENS = ("<eos>", "<turn|>", "<|tool_response>")
"""As the checkpoint's generation_config.json has them: 1, 106, 50."""
_CONTROL, _USER_DEFINED = 3, 4
"""llama.cpp's kinds of tokens. Sentinels of chats that are printed (channel, tool calls) are user-defined."""
_SENTINEL_ENDS = (("<|", ">"), ("<", "|>"))


@dataclass(frozen=True, slots=True)
class SamplerDefaults:
    """How the checkpoint wants to be denoised; its own generation_config.json has these numbers."""

    entropy_bound: float = 0.1
    t_max: float = 0.8
    t_min: float = 0.4
    max_denoising_steps: int = 48
    stability_threshold: int = 1
    stop_confidence: float = 0.005
    """Nats: the mean entropy under which a stable draft is the answer."""
    end_ids: tuple[int, ...] = ()
    """Empty: those of `END_TOKENS` that the vocabulary has."""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "SamplerDefaults":
        """From a generation_config.json; what it does not say stays as it is."""
        known = {
            "t_max": config.get("t_max"),
            "t_min": config.get("t_min"),
            "max_denoising_steps": config.get("max_denoising_steps"),
            "stability_threshold": config.get("stability_threshold"),
            "stop_confidence": config.get("confidence_threshold"),
            "entropy_bound": (config.get("sampler_config") or {}).get("entropy_bound"),
        }
        ends = config.get("eos_token_id")
        if ends is not None:
            known["end_ids"] = tuple(ends) if isinstance(ends, list) else (ends,)
        return cls(**{key: value for key, value in known.items() if value is not None})


def describe_diffusion(
    sampler: SamplerDefaults, tokens: Sequence[str], kinds: Sequence[int], canvas_length: int, context_length: int
) -> dict[str, Value]:
    """The `dg.*` keys of the main file but those of its side file."""
    ends = sampler.end_ids or tuple(tokens.index(token) for token in END_TOKENS if token in tokens)
    banned = tuple(i for i, token in enumerate(tokens) if _is_sentinel(token, kinds[i]) and i not in ends)
    lengths = (*(length for length in SHORTER_CANVASES if length < canvas_length), canvas_length)
    return {
        "dg.version": v.uint32(1),
        "dg.noise": v.text("uniform"),
        "dg.prompt_format": v.text("instruct"),
        "dg.template": v.text("gemma4"),
        "dg.canvas_lengths": v.text(",".join(map(str, lengths))),
        "dg.max_prompt_tokens": v.uint32(max(1, min(MAX_PROMPT_TOKENS, context_length - 2 * canvas_length))),
        "dg.entropy_bound": v.float32(sampler.entropy_bound),
        "dg.t_max": v.float32(sampler.t_max),
        "dg.t_min": v.float32(sampler.t_min),
        "dg.max_denoising_steps": v.uint32(sampler.max_denoising_steps),
        "dg.stability_threshold": v.uint32(sampler.stability_threshold),
        "dg.stop_confidence": v.float32(sampler.stop_confidence),
        "dg.end_token_ids": v.text(",".join(map(str, ends))),
        "dg.banned_token_ids": v.text(",".join(map(str, banned))),
    }


def _is_sentinel(token: str, kind: int) -> bool:
    """No part of a text: control tokens, and a chat's sentinels that are printed."""
    if kind == _CONTROL:
        return True
    return kind == _USER_DEFINED and any(token.startswith(a) and token.endswith(b) for a, b in _SENTINEL_ENDS)


EMBEDDING = "token_embd.weight"


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything that is written, none of it read yet but metadata."""

    values: Mapping[str, Value]
    """The main file's metadata, but what names the side file."""
    body: tuple[Tensor, ...]
    side: tuple[Tensor, ...]

    @property
    def size(self) -> int:
        """Bytes of all weights."""
        return self.body_size + sum(tensor.size for tensor in self.side)

    @property
    def body_size(self) -> int:
        """Bytes of the main file's weights."""
        return sum(tensor.size for tensor in self.body)

    @property
    def embedding_kind(self) -> str:
        """Number format of the tokens' embeddings."""
        return next(tensor.kind.name for tensor in self.body if tensor.name == EMBEDDING)

    @property
    def bits(self) -> int:
        """Of a weight, where they are not quantized."""
        return 8 * next(tensor.kind.block_bytes for tensor in self.body if tensor.name == EMBEDDING)

    @property
    def is_quantized(self) -> bool:
        """Some weights are held in blocks, so that holding them otherwise would round them again."""
        return any(tensor.kind.block_weights > 1 for tensor in self.body)


def check_whole(name: str, body: Mapping[str, object], side: Mapping[str, object], num_layers: int) -> None:
    """Nothing is missing that the model computes with; `attn_v` and the layers' scale may be.

    Raises:
        ModelBrokenError: names the first tensor that is.
    """
    optional = {"attn_v.weight", f"{DECODER_SCALE}.weight"}
    needed = [EMBEDDING, "output_norm.weight", "rope_freqs.weight"]
    needed += [f"blk.{i}.{tensor}" for i in range(num_layers) for tensor in LAYER_TENSORS if tensor not in optional]
    missing = [tensor for tensor in needed if tensor not in body]
    missing += [tensor for tensor in SELF_CONDITIONING if tensor not in side]
    if missing:
        raise ModelBrokenError(
            f"{name} lacks {len(missing)} tensors of a DiffusionGemma ({missing[0]}): download or export it again"
        )


_NUMBERED = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")


def read_shards(path: Path) -> tuple[GGUFHeader, ...]:
    """All files of a model, the one with the metadata first; any of them may be named.

    Raises:
        ModelNotFoundError: one is missing.
        ModelBrokenError: one is damaged or cut short.
        ModelUnsupportedError: of a version, byte order or number format that is not known.
    """
    header = read_header(path)
    count = header.values["split.count"].read() if "split.count" in header.values else 1
    if count == 1:
        return (header,)
    match = _NUMBERED.fullmatch(path.name)
    if match is None or not isinstance(count, int) or int(match[3]) != count:
        raise ModelBrokenError(f"{path} is one of {count} files and named otherwise: give it back its name")
    paths = [path.with_name(f"{match[1]}-{number:05}-of-{count:05}.gguf") for number in range(1, count + 1)]
    if missing := [one.name for one in paths if not one.is_file()]:
        raise ModelNotFoundError(f"{path.parent} lacks {missing[0]} ({len(missing)} of {count} files): download it")
    return tuple(read_header(one) for one in paths)


_OLD, _NEW = f"{checkpoint.DIFFUSION_ARCHITECTURE}.", f"{checkpoint.ARCHITECTURE}."
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
    return Parts(_values(shards[0]), tuple(body.values()), tuple(side[name] for name in checkpoint.SELF_CONDITIONING))


def is_repacked(header: GGUFHeader) -> bool:
    """The file has its side file already."""
    return header.architecture == checkpoint.ARCHITECTURE and _SIDE in header.values


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
    if architecture == checkpoint.DIFFUSION_ARCHITECTURE:
        return
    if is_repacked(header):
        problem = "is repacked already: use it as it is"
    elif architecture == checkpoint.ARCHITECTURE:
        problem = "is a plain Gemma 4, which denoises nothing: name a DiffusionGemma, or use it as a causal model"
    elif architecture == checkpoint.SIDE_ARCHITECTURE:
        problem = "is the side file of a repacked model: name the file beside it"
    else:
        problem = f"is of architecture {architecture or 'unknown'}, not {checkpoint.DIFFUSION_ARCHITECTURE}"
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
        if new := checkpoint.GGUF_SELF_CONDITIONING.get(stem):
            side[new] = copied(shard.path, tensor, new)
        elif not stem.endswith(f".{checkpoint.ENCODER_SCALE}"):
            body[tensor.name] = copied(shard.path, tensor)
    return body, side


def _check_scales(shards: Sequence[GGUFHeader]) -> None:
    scales = {
        tensor.name: shard.rows(tensor.name)
        for shard, tensor in _stored(shards)
        if tensor.name.removesuffix(".weight").endswith((checkpoint.ENCODER_SCALE, checkpoint.DECODER_SCALE))
    }
    for name, encoder in scales.items():
        twin = name.replace(checkpoint.ENCODER_SCALE, checkpoint.DECODER_SCALE)
        if twin not in scales:
            raise ModelBrokenError(f"{shards[0].path} lacks {twin}: download or export it again")
        if not np.array_equal(encoder, scales[twin]):
            raise ModelUnsupportedError(
                f"{shards[0].path}: {name} differs from {twin}, and llama.cpp's {checkpoint.ARCHITECTURE} graph has "
                "one for both: use the checkpoint with the transformers backend"
            )


def _values(header: GGUFHeader) -> dict[str, Value]:
    kept = {
        key.replace(_OLD, _NEW, 1) if key.startswith(_OLD) else key: value
        for key, value in header.values.items()
        if key not in _DROPPED and not key.startswith("split.")
    }
    kept["general.architecture"] = v.text(checkpoint.ARCHITECTURE)
    fields = _Fields(header)
    canvas = next((fields.number(key) for key in _CANVAS_KEYS if key in header.values), TRAINED_CANVAS)
    described = describe_diffusion(
        SamplerDefaults(),
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
    sampler = SamplerDefaults.of(read_json(generation)) if generation.is_file() else SamplerDefaults()
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


_SLACK = 64 << 20
"""Bytes beside the weights: metadata and padding."""

Quantize = Callable[[Path, Path], object]
"""Makes the second file from the first one, smaller."""


def side_path(target: Path) -> Path:
    """Where the side file of a main file lies."""
    return target.with_name(target.name.removesuffix(".gguf") + SIDE_SUFFIX)


def check_target(target: Path, needed: int) -> None:
    """The files can be written: a GGUF's name, not there yet, in a folder with room for `needed` bytes of weights.

    Raises:
        UsageError: the name is taken, or no GGUF's.
        InputFileError: no such folder, or no room in it.
    """
    if not target.name.endswith(".gguf") or target.name.endswith(SIDE_SUFFIX):
        raise UsageError(f"{target} is no name for a model: let it end in .gguf")
    for path in (target, side_path(target)):
        if path.exists():
            raise UsageError(f"{path} is there already: remove it, or pass another name with -o")
    if not target.parent.is_dir():
        raise InputFileError(f"{target.parent} is no folder: make it, or pass another name with -o")
    free = shutil.disk_usage(target.parent).free
    if free < needed + _SLACK:
        raise InputFileError(
            f"{target.parent} needs {(needed + _SLACK) / 1e9:,.1f} GB free and has {free / 1e9:,.1f}: "
            "make room there, or pass another folder with -o"
        )


def write_pair(
    parts: Parts, target: Path, look: ProgressCallback = lambda _: None, press: Quantize | None = None
) -> None:
    """Writes both files under temporary names and renames them; an interruption leaves nothing behind.

    With `press` the main file is made by it from what is written first.

    Raises:
        ModelBrokenError: the source ended too early.
        InputFileError: no room, or no right to write there.
        DgLspError: what `press` raises.
    """
    side = side_path(target)
    with explained(target), contextlib.ExitStack() as stack:
        new_side = stack.enter_context(_temporary(side))
        with new_side.open("wb") as file:
            write_gguf(file, {"general.architecture": v.text(SIDE_ARCHITECTURE)}, parts.side, look)
        values = {
            **parts.values,
            "dg.self_conditioning": v.text(side.name),
            "dg.self_conditioning.sha256": v.text(_sha256(new_side)),
        }
        new = stack.enter_context(_temporary(target))
        with new.open("wb") as file:
            write_gguf(file, values, parts.body, look)
        if press:
            pressed = stack.enter_context(_temporary(target))
            press(new, pressed)
            new = pressed
        _keep(new_side, side)
        _keep(new, target)


@contextlib.contextmanager
def _temporary(target: Path) -> Iterator[Path]:
    """An empty file beside `target`; removed in the end where nobody renamed it."""
    number, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    os.close(number)
    try:
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


def _keep(temporary: Path, target: Path) -> None:
    """The file is on the disk before it has its name."""
    with temporary.open("r+b") as file:
        os.fsync(file.fileno())
    temporary.chmod(0o644)
    temporary.replace(target)


@contextlib.contextmanager
def explained(target: Path) -> Iterator[None]:
    """What the system says of a disk, as an error that says what to do."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InputFileError(
            f"{target} cannot be written: {reason}; make room there, or pass another name with -o"
        ) from error


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
