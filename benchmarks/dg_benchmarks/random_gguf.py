"""Writes DiffusionGemma with random weights as a repacked GGUF and its side file: full size, quantized, in minutes.

ggml quantizes a few random rows of each width, and every matrix repeats them. The time of a step depends on the size of
the weights and on the experts that the random router chooses, not on the values.
"""

import ctypes
import functools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dg_benchmarks.shape import Shape
from dg_lsp import gguf as v
from dg_lsp.backends.llamacpp.library import ggml_functions
from dg_lsp.canvas.spec import UniformSampling
from dg_lsp.gguf import BLOCK_BYTES, F32, TENSOR_TYPES, Tensor, TensorType, Value, vector
from dg_lsp.models.checkpoint import ARCHITECTURE, SELF_CONDITIONING, diffusion_metadata, read_geometry, vocabulary
from dg_lsp.models.convert import ModelParts, write_model

_SAMPLE_ROWS = 64
_BY_NAME = {kind.name: kind for kind in TENSOR_TYPES.values()}
_FILE_TYPES = {"Q4_K": 15, "Q8_0": 7, "F16": 1}
_SPECIALS = {0: "<pad>", 1: "<eos>", 2: "<bos>", 3: "<unk>", 50: "<|tool_response>", 100: "<|channel>"} | {
    101: "<channel|>",
    105: "<|turn>",
    106: "<turn|>",
    107: "\n",
}
_FIRST_BYTE, _FIRST_LETTER = 108, 364


def write_random(shape: Shape, kind: str, target: Path) -> Path:
    """Writes `target` and its side file.

    Raises:
        InputFileError: there is not enough space.
    """
    sizes, divisors = read_geometry(shape.config())
    tensors = list(_tensors(shape, kind))
    values: dict[str, Value] = {
        "general.architecture": v.text(ARCHITECTURE),
        "general.name": v.text("random weights"),
        "general.file_type": v.uint32(_FILE_TYPES[kind]),
        "general.quantization_version": v.uint32(2),
        **sizes,
        **_vocabulary(shape),
    }
    main = (vector("rope_freqs.weight", divisors), *tensors)
    write_model(ModelParts(values, main, tuple(_side(shape))), target)
    return target


def _tensors(shape: Shape, kind: str) -> Iterator[Tensor]:
    width = shape.hidden
    yield _matrix("token_embd.weight", (shape.vocab_size, width), "Q6_K" if kind == "Q4_K" else kind, scale=0.02)
    yield vector("output_norm.weight", np.ones(width, np.float32))
    for layer in range(shape.layers):
        yield from (replace(tensor, name=f"blk.{layer}.{tensor.name}") for tensor in _layer(shape, layer, kind))


def _layer(shape: Shape, layer: int, kind: str) -> Iterator[Tensor]:
    width = shape.hidden
    sliding = shape.is_sliding(layer)
    head = shape.sliding_head if sliding else shape.full_head
    kv = head * (shape.sliding_kv_heads if sliding else shape.full_kv_heads)
    yield _matrix("attn_q.weight", (shape.heads * head, width), kind)
    yield _matrix("attn_k.weight", (kv, width), kind)
    if sliding:
        yield _matrix("attn_v.weight", (kv, width), kind)
    yield _matrix("attn_output.weight", (width, shape.heads * head), kind)
    yield _matrix("ffn_gate.weight", (shape.feed_forward, width), kind)
    yield _matrix("ffn_up.weight", (shape.feed_forward, width), kind)
    yield _matrix("ffn_down.weight", (width, shape.feed_forward), kind)
    yield _matrix("ffn_gate_up_exps.weight", (shape.experts, 2 * shape.expert_width, width), kind)
    yield _matrix("ffn_down_exps.weight", (shape.experts, width, shape.expert_width), kind)
    rng = np.random.default_rng(layer)
    router = rng.standard_normal((shape.experts, width), np.float32) * width**-0.5
    yield vector("ffn_gate_inp.weight", router)
    yield vector("ffn_gate_inp.scale", np.ones(width, np.float32))
    yield vector("ffn_down_exps.scale", np.ones(shape.experts, np.float32))
    yield vector("layer_output_scale.weight", np.ones(1, np.float32))
    norms = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm", "post_ffw_norm_1", "post_ffw_norm_2")
    for name in (*norms, "pre_ffw_norm_2"):
        yield vector(f"{name}.weight", np.ones(width, np.float32))
    for name in ("attn_q_norm", "attn_k_norm"):
        yield vector(f"{name}.weight", np.ones(head, np.float32))


def _side(shape: Shape) -> Iterator[Tensor]:
    sizes = ((shape.feed_forward, shape.hidden),) * 2 + ((shape.hidden, shape.feed_forward),)
    yield vector(SELF_CONDITIONING[0], np.ones(shape.hidden, np.float32))
    for name, size in zip(SELF_CONDITIONING[1:], sizes, strict=True):
        yield _matrix(name, size, "F32")


def _matrix(name: str, size: tuple[int, ...], kind: str, *, scale: float = 0.0) -> Tensor:
    fitting = _fitting(kind, size[-1])
    return Tensor(name, size, fitting, partial(_repeated, fitting, size, scale or size[-1] ** -0.5))


def _fitting(kind: str, width: int) -> TensorType:
    """The format, or the one that llama.cpp uses instead if a row is not a multiple of its block."""
    for name in (kind, "Q5_0", "F16"):
        if width % _BY_NAME[name].block_weights == 0:
            return _BY_NAME[name]
    raise ValueError(f"no format for rows of {width} weights")


def _repeated(kind: TensorType, size: tuple[int, ...], scale: float) -> Iterable[bytes]:
    sample = _sample(kind, size[-1], scale)
    left = prod(size[:-1]) * kind.row_bytes(size[-1])
    piece = sample * max(1, BLOCK_BYTES // len(sample))
    while left > 0:
        yield piece[:left]
        left -= len(piece)


@functools.cache
def _sample(kind: TensorType, width: int, scale: float) -> bytes:
    rng = np.random.default_rng(width)
    rows: npt.NDArray[np.float32] = rng.standard_normal((_SAMPLE_ROWS, width), np.float32) * np.float32(scale)
    if kind is F32:
        return rows.tobytes()
    made = ctypes.create_string_buffer(_SAMPLE_ROWS * kind.row_bytes(width))
    numbers = (ctypes.c_int64,) * 3
    types = (ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, *numbers, ctypes.c_void_p)
    ggml = ggml_functions(quantize_chunk=types)
    ggml.quantize_chunk(kind.number, rows.ctypes.data, made, 0, _SAMPLE_ROWS, width, None)
    return made.raw


def _vocabulary(shape: Shape) -> dict[str, Value]:
    """Gemma's special tokens, all bytes, printable letters; the other tokens are unused."""
    words = {f"<0x{byte:02X}>": _FIRST_BYTE + byte for byte in range(256)}
    words |= {letter: _FIRST_LETTER + i for i, letter in enumerate(["\u2581", *map(chr, range(33, 127))])}
    words |= {text: i for i, text in _SPECIALS.items()}
    added = [{"id": i, "content": text, "special": True} for i, text in _SPECIALS.items() if text != "\n"]
    model = {"type": "BPE", "byte_fallback": True, "vocab": words, "merges": [["\u2581", "\u2581"]]}
    words["\u2581\u2581"] = _FIRST_LETTER + 95
    tokenizer_values = vocabulary({"model": model, "added_tokens": added}, shape.vocab_size)
    return tokenizer_values | diffusion_metadata(UniformSampling(), tokenizer_values, shape.canvas, shape.context)
