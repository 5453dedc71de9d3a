"""A checkpoint folder: its tensors, and as GGUF metadata sizes, names, vocabulary and sampler of a DiffusionGemma.

A safetensors file is a JSON header and plain numbers; reading it here makes torch unnecessary for the conversion.
"""

import json
import re
import stat
import struct
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from importlib import resources
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dg_lsp import gguf
from dg_lsp.canvas.chat import THOUGHT_MARKS
from dg_lsp.canvas.spec import UniformSampling
from dg_lsp.errors import InputFileError, ModelError, ModelUnsupportedError, escaped
from dg_lsp.gguf import BF16, F16, F32, StoredTensor, TensorType, Value, map_file_errors

# files

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
NUMBER_FORMATS: dict[str, TensorType] = {kind.name: kind for kind in (F32, F16, BF16)}
"""Of checkpoints, and of the files that llama.cpp's script writes, by name."""
_MAX_HEADER = 100_000_000  # bytes; the limit of the format
_MAX_TEXT = 100_000_000  # bytes of a text file; the tokenizers of large models have 35 million
_MAX_SHOWN = 255  # characters of a name in an error: no file has a longer one
DAMAGE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError, struct.error)
"""What values of another type or range raise while they are read or converted."""


def name_of(source: Path) -> str:
    """The name of a checkpoint's folder or of a file.

    In Hugging Face's cache a folder has the name of its repository: its own one is a commit.
    """
    if source.is_file():  # there a link to a file that is named by its checksum
        return source.name
    folder = source.resolve()
    return folder.parents[1].name.rpartition("--")[2] if folder.parent.name == "snapshots" else folder.name


def read_checkpoint(folder: Path) -> dict[str, StoredTensor]:
    """The tensors of all safetensors files in a folder, by name. Reads only the headers.

    Raises:
        InputFileError: the folder has no safetensors file, or one of them is missing.
        ModelError: a file cannot be read, is damaged or cut short.
        ModelUnsupportedError: a number format other than F32, F16 and BF16.
    """
    index = folder / INDEX
    shards = read_json(index).get("weight_map") if index.is_file() else {"": SINGLE}
    names = sorted({*map(str, shards.values())}) if isinstance(shards, dict) else []
    if not names or not all(name.endswith(".safetensors") for name in names):  # transformers would unpickle others
        raise ModelError(f"{index} is damaged, or names files of another format: download it again")
    with map_file_errors(folder):
        present = {path.name for path in folder.iterdir() if path.is_file()}  # a pipe would block
    if missing := [name for name in names if name not in present]:  # also of a file in another folder
        shown = escaped(missing[0][:_MAX_SHOWN])
        raise InputFileError(f"{folder} lacks {shown} ({len(missing)} of {len(names)} files): download it again")
    tensors: dict[str, StoredTensor] = {}
    for name in names:
        tensors |= _tensors(folder / name)
    return tensors


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file of a checkpoint.

    Raises InputFileError: the file is missing, unreadable, or not a JSON object.
    """
    try:
        content = json.loads(read_text(path))
    except OSError as error:
        raise InputFileError(f"{path} cannot be read ({error.strerror}): name the folder of a checkpoint") from error
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise InputFileError(f"{path} is damaged: download it again")
    return content


def read_text(path: Path) -> str:
    """The text of a file of a checkpoint. Raises OSError, or ValueError where it is no text, no file, or too long."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_TEXT:  # a pipe would block
        raise ValueError(f"{path.name} is no file of at most {_MAX_TEXT} bytes")
    return path.read_text(encoding="utf-8")


def _tensors(path: Path) -> dict[str, StoredTensor]:
    try:
        with map_file_errors(path), path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > _MAX_HEADER:
                raise ValueError(length)
            entries: Mapping[str, Any] = json.loads(file.read(length))
            size = file.seek(0, 2)
        tensors = [_tensor(path, 8 + length, name, entry) for name, entry in entries.items() if name != "__metadata__"]
    except DAMAGE as error:
        raise ModelError(f"{path} is not a safetensors file, or is damaged: download it again") from error
    if any(t.start + t.size > size for t in tensors):
        raise ModelError(f"{path} is cut short: download it again")
    return {tensor.name: tensor for tensor in tensors}


def _tensor(path: Path, data: int, name: str, entry: Mapping[str, Any]) -> StoredTensor:
    begin, end = entry["data_offsets"]
    shape = tuple(int(length) for length in entry["shape"])
    kind = NUMBER_FORMATS.get(entry["dtype"])
    if kind is None:
        problem = f"{path.parent}: tensor {name} is of number format {entry['dtype']}"
        raise ModelUnsupportedError(f"{problem}: use the checkpoint in BF16, F16 or F32")
    if end - begin != prod(shape) * kind.block_bytes or min((begin, *shape)) < 0:
        raise ValueError(name)
    return StoredTensor(name, shape, kind, path, data + begin)


# DiffusionGemma

ARCHITECTURE = "gemma4"
"""The architecture of repacked files: DiffusionGemma's decoder is that of Gemma 4."""
DIFFUSION_ARCHITECTURE = "diffusion-gemma"
"""The architecture of files for llama.cpp's pull request 24423."""
SIDE_ARCHITECTURE = "dg-selfcond"
"""The architecture of the side file with the weights of the self-conditioning."""
SIDE_SUFFIX = ".selfcond.gguf"

_NAMES = tomllib.loads((resources.files(__package__) / "diffusiongemma.toml").read_text(encoding="utf-8"))
SELF_CONDITIONING = tuple(f"self_cond.{part}" for part in ("pre_norm", "gate", "up", "down"))
"""The tensors of the side file, shapes (H,), (M, H), (M, H), (H, M). `diffusion-gemma` files have `_` for the dot."""
DECODER_SCALE = "layer_output_scale"
ENCODER_SCALE = "enc_layer_output_scale"
"""The encoder shares the weights of the decoder, but has its own copy of this number per layer."""

DECODER = "model.decoder."
ENCODER = "model.encoder.language_model."
EMBEDDING = f"{DECODER}embed_tokens.weight"

_NUMBERED = re.compile(r"layers\.(\d+)\.(.+)")
LAYER_TENSORS = tuple(_NAMES["layer"].values())
"""Names in each layer, without `blk.N.`; layers with full attention have no `attn_v.weight`."""


def gguf_name(name: str) -> str | None:
    """The name in the GGUF files of a decoder tensor of a checkpoint; None if it is unknown."""
    if not name.startswith(DECODER):
        return None
    inner_name = name.removeprefix(DECODER)
    if match := _NUMBERED.fullmatch(inner_name):
        layer = _NAMES["layer"].get(match[2])
        return f"blk.{int(match[1])}.{layer}" if layer else None
    name_outside: str | None = _NAMES["tensors"].get(inner_name)
    return name_outside


MODEL_TYPE = "diffusion_gemma"
_SLIDING, _FULL = "sliding_attention", "full_attention"
_SOFTCAP = 30.0  # limit of the logits if the config has none: transformers does not save it
_UNROTATED = 1e30  # a frequency divisor that leaves a channel unrotated


def read_geometry(config: Mapping[str, Any]) -> tuple[dict[str, Value], npt.NDArray[np.float32]]:
    """The `gemma4.*` metadata of the text model's sizes, and the contents of `rope_freqs.weight`.

    Raises KeyError, TypeError, ValueError: a key is missing, invalid, or not supported by llama.cpp's graph.
    """
    text = config["text_config"]
    sliding = [kind == _SLIDING for kind in text["layer_types"]]
    rope = text["rope_parameters"]
    supported = {
        "layer_types": len(sliding) == text["num_hidden_layers"] and {*text["layer_types"]} <= {_SLIDING, _FULL},
        "tie_word_embeddings": text.get("tie_word_embeddings", True),
        "use_bidirectional_attention": text.get("use_bidirectional_attention") in (None, "vision"),
        "hidden_activation": text.get("hidden_activation", "gelu_pytorch_tanh") == "gelu_pytorch_tanh",
        "num_experts": text.get("num_experts"),
        "attention_bias": not text.get("attention_bias"),
        "rope_parameters": [rope[kind]["rope_type"] for kind in (_FULL, _SLIDING)] == ["proportional", "default"],
    }
    if problem := next((key for key, is_supported in supported.items() if not is_supported), ""):
        raise ValueError(problem)
    full_width = _full_layer_size(text, "head_dim", "global_head_dim")
    full_kv = _full_layer_size(text, "num_key_value_heads", "num_global_key_value_heads")
    sliding_kv = int(text["num_key_value_heads"])
    values = {
        **{name: gguf.uint32(text[key]) for name, key in _NAMES["sizes"].items()},
        "block_count": gguf.uint32(len(sliding)),
        "attention.head_count_kv": gguf.int32s([sliding_kv if slides else full_kv for slides in sliding]),
        "rope.freq_base": gguf.float32(rope[_FULL]["rope_theta"]),
        "rope.freq_base_swa": gguf.float32(rope[_SLIDING]["rope_theta"]),
        "attention.layer_norm_rms_epsilon": gguf.float32(text["rms_norm_eps"]),
        "attention.key_length": gguf.uint32(full_width),
        "attention.value_length": gguf.uint32(full_width),
        "attention.shared_kv_layers": gguf.uint32(0),
        "embedding_length_per_layer_input": gguf.uint32(0),
        "attention.sliding_window_pattern": gguf.flags(sliding),
        "rope.dimension_count": gguf.uint32(full_width),
        "final_logit_softcapping": gguf.float32(text.get("final_logit_softcapping", _SOFTCAP)),
    }
    # layers with full attention rotate only their first channels
    num_rotated = int(full_width * rope[_FULL]["partial_rotary_factor"] / 2)
    divisors = np.where(np.arange(full_width // 2) < num_rotated, 1.0, _UNROTATED).astype(np.float32)
    return {f"{ARCHITECTURE}.{key}": value for key, value in values.items()}, divisors


def _full_layer_size(text: Mapping[str, Any], key: str, old_key: str) -> int:
    """A size of the layers with full attention; older configs have a separate key for it."""
    if text.get(old_key) is not None:
        return int(text[old_key])
    layers = text.get("per_layer_config") or {}
    sizes = (layer.get(key) for i, layer in layers.items() if text["layer_types"][int(i)] == _FULL)
    return int(next(sizes, None) or text[key])


NORMAL, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 3, 4, 5, 6
"""llama.cpp's token types."""
_PRINTED = {"<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", '<|"|>'}
"""Special tokens that llama.cpp prints: programs that parse the output search for them."""
_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_SCORE = -1000.0
_MAX_VOCABULARY = 1 << 21  # tokens, eight times those of Gemma: a configuration can claim any number
_SPECIAL = {
    "bos_token_id": "<bos>",
    "eos_token_id": "<eos>",
    "unknown_token_id": "<unk>",
    "padding_token_id": "<pad>",
    "mask_token_id": "<mask>",
}


def vocabulary(tokenizer: Mapping[str, Any], size: int, chat_template: str = "") -> dict[str, Value]:
    """The `tokenizer.*` metadata of a vocabulary with `size` tokens.

    Raises KeyError, TypeError, ValueError: not a BPE tokenizer like that of Gemma.
    """
    model = tokenizer["model"]
    if size > _MAX_VOCABULARY:
        raise ValueError(f"{size} tokens")
    if model["type"] != "BPE" or not model.get("byte_fallback"):
        raise ValueError("not a BPE tokenizer with byte fallback")
    ids = {**model["vocab"]}
    added = {entry["content"]: entry for entry in tokenizer.get("added_tokens", ())}
    ids |= {text: entry["id"] for text, entry in added.items()}
    if outside := [i for i in ids.values() if not 0 <= i < size]:
        raise ValueError(f"token {outside[0]} of {size}")
    tokens = [f"<unused_{i}>" for i in range(size)]
    kinds = [UNUSED] * size
    for token, i in ids.items():
        tokens[i] = token
        kinds[i] = _token_type(token, added.get(token), in_model=token in model["vocab"])
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    values = {
        "tokenizer.ggml.model": gguf.text("gemma4"),
        "tokenizer.ggml.tokens": gguf.texts(tokens),
        "tokenizer.ggml.scores": gguf.float32s([_SCORE] * size),
        "tokenizer.ggml.token_type": gguf.int32s(kinds),
        "tokenizer.ggml.merges": gguf.texts(merges),
        **{f"tokenizer.ggml.{key}": gguf.uint32(ids[token]) for key, token in _SPECIAL.items() if token in ids},
        "tokenizer.ggml.add_space_prefix": gguf.flag(False),
        "tokenizer.ggml.add_bos_token": gguf.flag(True),
    }
    if chat_template:
        values["tokenizer.chat_template"] = gguf.text(chat_template)
    return values


def _token_type(token: str, added: Mapping[str, Any] | None, *, in_model: bool) -> int:
    """The same rules as in llama.cpp's conversion of Gemma 4."""
    if token in _PRINTED:
        return USER_DEFINED
    if _BYTE.fullmatch(token):
        return BYTE
    if added is None:
        return NORMAL
    if added.get("special"):
        return CONTROL
    return NORMAL if in_model else USER_DEFINED


TRAINED_CANVAS = 256
_SHORTER_CANVASES = (16, 32, 64, 128)
"""The forward pass accepts any length; the quality of completions at shorter lengths was not measured."""
_MAX_PROMPT_TOKENS = 4096  # the model accepts 262,144, but a completion has to stay fast
_END_TOKENS = ("<eos>", "<turn|>", "<|tool_response>")
"""The tokens 1, 106 and 50 of the published generation_config.json."""
_SENTINELS = (("<|", ">"), ("<", "|>"))
"""Start and end of a chat's special tokens; some of them (channel, tool calls) are user-defined, not control tokens."""


def read_vocabulary(folder: Path, config: Mapping[str, Any]) -> dict[str, Value]:
    """The `tokenizer.*` and `dg.*` metadata of a checkpoint with this configuration.

    Raises:
        InputFileError: a file is missing, unreadable or damaged, or not that of a tokenizer like Gemma's.
        KeyError, TypeError, ValueError: a key of the configuration is missing or invalid.
    """
    size = int(config["text_config"]["vocab_size"])
    context_length = int(config["text_config"]["max_position_embeddings"])
    canvas_length = int(config.get("canvas_length") or TRAINED_CANVAS)
    template = folder / "chat_template.jinja"
    generation = folder / "generation_config.json"
    try:
        chat_template = read_text(template) if template.is_file() else ""
        values = vocabulary(read_json(folder / "tokenizer.json"), size, chat_template)
    except (*DAMAGE, OSError) as error:
        problem = f"{folder}/tokenizer.json is not a tokenizer like that of Gemma ({error})"
        raise InputFileError(f"{problem}: download the checkpoint again") from error
    defaults = read_json(generation) if generation.is_file() else {}
    try:
        settings = {field.name: defaults.get(field.name) for field in fields(UniformSampling)}
        settings["entropy_bound"] = (defaults.get("sampler_config") or {}).get("entropy_bound")
        sampling = UniformSampling(**{name: value for name, value in settings.items() if value is not None})
        end_ids = defaults.get("eos_token_id") or ()
        end_ids = tuple(end_ids) if isinstance(end_ids, list | tuple) else (end_ids,)
        return values | diffusion_metadata(sampling, values, canvas_length, context_length, end_ids)
    except DAMAGE as error:
        raise InputFileError(f"{generation} is damaged ({error}): download it again") from error


def diffusion_metadata(
    sampling: UniformSampling,
    tokenizer: Mapping[str, Value],
    canvas_length: int,
    context_length: int,
    end_ids: tuple[int, ...] = (),
) -> dict[str, Value]:
    """The `dg.*` metadata of the main file, except for the two keys of its side file.

    Without `end_ids`, `<eos>`, `<turn|>` and `<|tool_response>` end the text.

    Raises KeyError, TypeError, ValueError, struct.error: a key of the tokenizer is missing, or a value is not valid.
    """
    tokens, kinds = (tokenizer[f"tokenizer.ggml.{key}"].read() for key in ("tokens", "token_type"))
    if not isinstance(tokens, list) or not isinstance(kinds, list) or len(tokens) != len(kinds):
        raise ValueError("tokenizer.ggml.tokens and tokenizer.ggml.token_type are not lists of one length")
    end_ids = end_ids or tuple(tokens.index(token) for token in _END_TOKENS if token in tokens)
    free_ids = {*end_ids, *(tokens.index(mark) for marks in THOUGHT_MARKS for mark in marks if mark in tokens)}
    banned_ids = tuple(i for i, token in enumerate(tokens) if _is_special(str(token), kinds[i]) and i not in free_ids)
    lengths = (*(length for length in _SHORTER_CANVASES if length < canvas_length), canvas_length)
    return {
        "dg.version": gguf.uint32(1),
        "dg.noise": gguf.text("uniform"),
        "dg.prompt_format": gguf.text("instruct"),
        "dg.template": gguf.text("gemma4"),
        "dg.canvas_lengths": gguf.text(",".join(map(str, lengths))),
        "dg.max_prompt_tokens": gguf.uint32(max(1, min(_MAX_PROMPT_TOKENS, context_length - 2 * canvas_length))),
        "dg.entropy_bound": gguf.float32(sampling.entropy_bound),
        "dg.t_max": gguf.float32(sampling.t_max),
        "dg.t_min": gguf.float32(sampling.t_min),
        "dg.max_denoising_steps": gguf.uint32(sampling.max_denoising_steps),
        "dg.stability_threshold": gguf.uint32(sampling.stability_threshold),
        "dg.stop_confidence": gguf.float32(sampling.confidence_threshold),
        "dg.end_token_ids": gguf.text(",".join(map(str, end_ids))),
        "dg.banned_token_ids": gguf.text(",".join(map(str, banned_ids))),
    }


def _is_special(token: str, kind: object) -> bool:
    is_sentinel = any(token.startswith(start) and token.endswith(end) for start, end in _SENTINELS)
    return kind == CONTROL or (kind == USER_DEFINED and is_sentinel)
