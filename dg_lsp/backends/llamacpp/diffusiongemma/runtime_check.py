"""Checks whether the loaded llama.cpp computes DiffusionGemma's attention, with tiny models made for it.

`python -m dg_lsp.backends.llamacpp.diffusiongemma.runtime_check` exits with 0 for yes and 10 for no.
"""

import contextlib
import functools
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from dg_lsp import gguf
from dg_lsp.backends.llamacpp.context import LlamaContext
from dg_lsp.backends.llamacpp.errors import decode_error
from dg_lsp.backends.llamacpp.library import library
from dg_lsp.backends.llamacpp.memory_estimate import ContextBudget
from dg_lsp.backends.llamacpp.model import LlamaModel
from dg_lsp.diffusion.denoiser import Floats
from dg_lsp.errors import BackendError, ModelError, ModelRuntimeError
from dg_lsp.runtime import COMMAND, STOCK, VARIABLE
from dg_lsp.settings import ModelSettings

NO = 10
_WIDTH, _VOCABULARY = 32, 4
_WINDOW = 2
"""Window of the sliding layer: a token attends to itself and the one before it."""
_SLIDING, _FULL = 0, 1  # the two layers
_BUDGET = ContextBudget(256, 256, 256, 256, 16, 1, 240)
_SETTINGS = ModelSettings(threads=1, gpu_layers=0)
_NOISE = 1e-3
"""Logits differ by more than 0.1 if a token attends to the one that changed."""


def require_runtime(path: Path) -> None:
    """Raises `ModelRuntimeError` if this llama.cpp would compute the DiffusionGemma in `path` wrongly."""
    if supports_bidirectional():
        return
    note = f" ({library().note})" if library().note else ""
    problem = f"is a DiffusionGemma, and llama.cpp as installed computes it wrongly{note}"
    raise ModelRuntimeError(f"{path} {problem}; run: {COMMAND}")


@functools.cache
def supports_bidirectional() -> bool:
    """Whether non-causal attention of arch `gemma4` is complete. Takes about 20 ms, once.

    In full layers a token must attend to later ones; in sliding layers the whole canvas must attend to the part of the
    prompt that its first token attends to.
    """
    ahead = _logits(_FULL, prompt=(), canvas=(1, 2))[0] - _logits(_FULL, prompt=(), canvas=(1, 3))[0]
    behind = _logits(_SLIDING, prompt=(1,), canvas=(2, 2))[1] - _logits(_SLIDING, prompt=(3,), canvas=(2, 2))[1]
    return bool(min(np.abs(ahead).max(), np.abs(behind).max()) > _NOISE)


def _logits(layer: int, *, prompt: Sequence[int], canvas: Sequence[int]) -> Floats:
    """Logits of a canvas after a prompt if only one layer has attention."""
    with contextlib.ExitStack() as stack:
        try:
            with tempfile.TemporaryDirectory(prefix="dg-lsp-check-", ignore_cleanup_errors=True) as name:
                path = Path(name) / "check.gguf"
                with path.open("wb") as file:
                    gguf.write_gguf(file, _metadata(), list(_tensors(layer)))
                model = stack.enter_context(contextlib.closing(LlamaModel.load(path, _SETTINGS)))
            context = stack.enter_context(contextlib.closing(LlamaContext(model, _BUDGET, flash_attention=False)))
        except ModelError as error:
            raise BackendError("llama.cpp cannot run a Gemma 4 model; update llama-cpp-python") from error
        start = 0
        for ids, is_causal in ((prompt, True), (canvas, False)):
            context.batch.put(np.array(ids, np.int32), np.arange(start, start + len(ids), dtype=np.int32), 0)
            if ids and (status := context.decode(causal=is_causal)):
                raise decode_error(status)
            start += len(ids)
        return context.logits(len(canvas)).copy()


def _metadata() -> dict[str, gguf.Value]:
    heads = (f"attention.{part}_length{kind}" for part in ("key", "value") for kind in ("", "_swa"))
    widths = ("embedding_length", "feed_forward_length", "rope.dimension_count", "rope.dimension_count_swa", *heads)
    numbers = {
        **dict.fromkeys(widths, _WIDTH),
        **dict.fromkeys(("attention.head_count", "attention.head_count_kv"), 1),
        **dict.fromkeys(("attention.shared_kv_layers", "embedding_length_per_layer_input"), 0),
        "context_length": 256,
        "block_count": 2,
        "attention.sliding_window": _WINDOW,
    }
    reals = {"attention.layer_norm_rms_epsilon": 1e-6, "rope.freq_base": 1e6, "rope.freq_base_swa": 1e4}
    return {
        "general.architecture": gguf.text("gemma4"),
        "tokenizer.ggml.model": gguf.text("gpt2"),
        "tokenizer.ggml.tokens": gguf.texts("abcd"),
        "tokenizer.ggml.merges": gguf.texts(["a b"]),
        "gemma4.attention.sliding_window_pattern": gguf.flags([True, False]),
        **{f"gemma4.{key}": gguf.uint32(value) for key, value in numbers.items()},
        **{f"gemma4.{key}": gguf.float32(value) for key, value in reals.items()},
    }


def _tensors(attending: int) -> Iterator[gguf.Tensor]:
    """Weights of both layers; the attention of the other layer adds nothing."""
    matrices = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    rows = ("attn_norm", "attn_q_norm", "attn_k_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
    blocks = [f"blk.{layer}" for layer in (_SLIDING, _FULL)]
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd": (_VOCABULARY, _WIDTH),
        "rope_freqs": (_WIDTH // 2,),
        "output_norm": (_WIDTH,),
        **{f"{block}.{name}": (_WIDTH, _WIDTH) for block in blocks for name in matrices},
        **{f"{block}.{name}": (_WIDTH,) for block in blocks for name in rows},
    }
    rng = np.random.default_rng(0)
    for name, shape in shapes.items():
        values = rng.standard_normal(shape) / 4 if len(shape) > 1 else np.ones(shape)
        is_silent = name == f"blk.{1 - attending}.attn_output"
        yield gguf.vector(f"{name}.weight", (0 * values if is_silent else values).astype(np.float32))


def main() -> None:
    """Exits with the answer, or with a message if the environment names a runtime that cannot be loaded."""
    if os.environ.get(VARIABLE, STOCK) != STOCK and library().runtime is None:
        sys.exit(library().note)
    sys.exit(0 if supports_bidirectional() else NO)


if __name__ == "__main__":
    main()
