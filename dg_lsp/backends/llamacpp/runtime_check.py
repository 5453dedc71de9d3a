"""Whether the loaded llama.cpp lets DiffusionGemma's canvas see all that it should: asked of models made for this.

`python -m dg_lsp.backends.llamacpp.runtime_check` leaves with 0 for yes and 10 for no.
"""

import functools
import os
import struct
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dg_lsp.backends.llamacpp.context import Batch
from dg_lsp.backends.llamacpp.library import library
from dg_lsp.diffusion.denoiser import Floats
from dg_lsp.errors import BackendError, ModelRuntimeError
from dg_lsp.runtime import COMMAND, STOCK, VARIABLE

NO = 10
_WIDTH, _VOCABULARY = 32, 4
_WINDOW = 2
"""Of the sliding layer: a token sees itself and the one before it."""
_SLIDING, _FULL = 0, 1
"""The two layers."""
_ALIGNMENT = 32
_NOISE = 1e-3
"""Logits differ by more than 0.1 where one token sees another."""
_UINT32, _FLOAT32, _BOOL, _STRING, _ARRAY = 4, 6, 7, 8, 9  # GGUF's value types


def require_runtime(path: Path) -> None:
    """For a model of Gemma 4's graph with a canvas: `path` is its file, for the message.

    Raises:
        ModelRuntimeError: this llama.cpp would compute something else, silently.
        BackendError: llama-cpp-python cannot be loaded.
    """
    if supports_bidirectional():
        return
    note = f" ({library().note})" if library().note else ""
    raise ModelRuntimeError(
        f"{path} is a DiffusionGemma, and llama.cpp as installed computes it wrongly{note}; run: {COMMAND}"
    )


@functools.cache
def supports_bidirectional() -> bool:
    """Where attention is not causal, arch `gemma4` sees later tokens in full attention, and behind the window's edge in
    sliding layers what the canvas's first token sees there. Takes some 20 ms, once.

    Raises:
        BackendError: llama-cpp-python cannot be loaded, or this arch cannot be run by it.
    """
    ahead = _rows(_FULL, prompt=(), canvas=(1, 2))[0] - _rows(_FULL, prompt=(), canvas=(1, 3))[0]
    behind = _rows(_SLIDING, prompt=(1,), canvas=(2, 2))[1] - _rows(_SLIDING, prompt=(3,), canvas=(2, 2))[1]
    return bool(min(np.abs(ahead).max(), np.abs(behind).max()) > _NOISE)


def _rows(layer: int, *, prompt: Sequence[int], canvas: Sequence[int]) -> Floats:
    """Logits of a canvas after a prompt, where only one layer attends to anything."""
    native = library()
    with tempfile.TemporaryDirectory(prefix="dg-lsp-probe-", ignore_cleanup_errors=True) as name:
        path = Path(name) / "probe.gguf"
        path.write_bytes(_model_file(layer))
        params = native.api.llama_model_default_params()
        params.n_gpu_layers = 0
        params.load_mode = native.api.LLAMA_LOAD_MODE_NONE
        model = native.api.llama_model_load_from_file(str(path).encode(), params)
    if not model:
        raise BackendError("llama.cpp cannot load a Gemma 4 model; update llama-cpp-python")
    try:
        return _decoded(native.api, model, prompt, canvas)
    finally:
        native.api.llama_model_free(model)
        native.log.forget_trouble()


def _decoded(api: Any, model: Any, prompt: Sequence[int], canvas: Sequence[int]) -> Floats:
    params = api.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = 32
    params.n_threads = params.n_threads_batch = 1
    context = api.llama_init_from_model(model, params)
    if not context:
        raise BackendError("llama.cpp cannot run a Gemma 4 model; update llama-cpp-python")
    try:
        start, batch = 0, Batch(api, 32, _WIDTH)
        for ids, is_causal in ((prompt, True), (canvas, False)):
            api.llama_set_causal_attn(context, is_causal)
            positions = np.arange(start, start + len(ids), dtype=np.int32)
            batch.put_tokens(np.array(ids, np.int32), positions, 0, 1)
            if ids and (status := api.llama_decode(context, batch.native)):
                raise BackendError(f"llama.cpp cannot run a Gemma 4 model: decode returned {status}")
            start += len(ids)
        return np.ctypeslib.as_array(api.llama_get_logits(context), shape=(len(canvas), _VOCABULARY)).copy()
    finally:
        api.llama_free(context)


def _model_file(attending: int) -> bytes:
    """A GGUF of a sliding layer and a full one, of which the attention of one alone says anything."""
    metadata = _metadata()
    rng = np.random.default_rng(0)
    infos, data = [], b""
    for name, shape in _tensors().items():
        is_matrix = len(shape) > 1
        values = rng.standard_normal(shape[::-1]) / 4 if is_matrix else np.ones(shape)
        values = values * (name != f"blk.{1 - attending}.attn_output.weight")
        infos.append(_text(name) + struct.pack(f"<I{len(shape)}qIQ", len(shape), *shape, 0, len(data)))
        data += values.astype("<f4").tobytes()
        data += bytes(-len(data) % _ALIGNMENT)
    head = struct.pack("<4sIqq", b"GGUF", 3, len(infos), len(metadata)) + b"".join([*metadata, *infos])
    return head + bytes(-len(head) % _ALIGNMENT) + data


def _metadata() -> list[bytes]:
    numbers = {
        "context_length": 256,
        "embedding_length": _WIDTH,
        "block_count": 2,
        "feed_forward_length": _WIDTH,
        "attention.head_count": 1,
        "attention.head_count_kv": 1,
        "attention.sliding_window": _WINDOW,
        "attention.shared_kv_layers": 0,
        "attention.key_length": _WIDTH,
        "attention.value_length": _WIDTH,
        "attention.key_length_swa": _WIDTH,
        "attention.value_length_swa": _WIDTH,
        "rope.dimension_count": _WIDTH,
        "rope.dimension_count_swa": _WIDTH,
        "embedding_length_per_layer_input": 0,
        "vocab_size": _VOCABULARY,
    }
    reals = {"attention.layer_norm_rms_epsilon": 1e-6, "rope.freq_base": 1e6, "rope.freq_base_swa": 1e4}
    pattern = struct.pack("<IQ??", _BOOL, 2, True, False)
    return [
        _text("general.architecture") + struct.pack("<I", _STRING) + _text("gemma4"),
        _text("tokenizer.ggml.model") + struct.pack("<I", _STRING) + _text("no_vocab"),
        _text("gemma4.attention.sliding_window_pattern") + struct.pack("<I", _ARRAY) + pattern,
        *(_text(f"gemma4.{key}") + struct.pack("<II", _UINT32, value) for key, value in numbers.items()),
        *(_text(f"gemma4.{key}") + struct.pack("<If", _FLOAT32, value) for key, value in reals.items()),
    ]


def _tensors() -> dict[str, tuple[int, ...]]:
    """Names and shapes, the innermost first."""
    matrices = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    rows = ("attn_norm", "attn_q_norm", "attn_k_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
    found: dict[str, tuple[int, ...]] = {"token_embd": (_WIDTH, _VOCABULARY), "rope_freqs": (_WIDTH // 2,)}
    found["output_norm"] = (_WIDTH,)
    for layer in range(2):
        found |= {f"blk.{layer}.{name}": (_WIDTH, _WIDTH) for name in matrices}
        found |= {f"blk.{layer}.{name}": (_WIDTH,) for name in rows}
    return {f"{name}.weight": shape for name, shape in found.items()}


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def main() -> None:
    """Leaves with the answer; with a message, too, where a runtime was named that is not the one loaded."""
    if os.environ.get(VARIABLE, STOCK) != STOCK and library().runtime is None:
        sys.exit(library().note)
    sys.exit(0 if supports_bidirectional() else NO)


if __name__ == "__main__":
    main()
