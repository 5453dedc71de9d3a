"""Maps failures of llama.cpp to dg-lsp's errors. No other module does that."""

import re
from collections.abc import Iterable
from pathlib import Path

from dg_lsp.errors import BackendError, ModelBrokenError, ModelError, ModelMemoryError, ModelUnsupportedError

DECODE_STATUS: dict[int, str] = {
    1: "the KV cache is full; use fewer slots or raise context_length",
    2: "the computation was aborted; try again",
    -1: "the batch was refused; please report this with the output of `dg-lsp doctor`",
    -2: "there was no memory for the computation; use a smaller model or a smaller context_length",
    -3: "the computation failed; try gpu_layers = 0, and see `dg-lsp doctor`",
}
"""Return values of `llama_decode` other than 0."""

LOAD_FAILURES: tuple[tuple[str, type[ModelError], str], ...] = (
    ("unknown model architecture", ModelUnsupportedError, "has an architecture that this llama.cpp does not support"),
    ("unknown (pre-)?tokenizer", ModelUnsupportedError, "has a tokenizer that this llama.cpp does not support"),
    ("CLIP cannot be used", ModelUnsupportedError, "is a vision encoder, not a language model"),
    ("to allocate|out of memory|bad_alloc", ModelMemoryError, "does not fit into memory"),
)
"""What llama.cpp logs when it cannot load a file; the first pattern found decides. Anything else is a broken file."""

_NOT_REPACKED = "unknown model architecture: 'diffusion-gemma'"
_OWN_NAME = re.compile(r"unknown model architecture: '(llada2|sdar|stable.?diffcoder|fast.?dllm|nemotron.?labs)")
"""Block-diffusion models under names of their own: llama.cpp computes their layers under the causal models' names."""

_ADVICE: dict[type[ModelError], str] = {
    ModelUnsupportedError: "update llama-cpp-python or use another model",
    ModelMemoryError: "use a smaller model or set gpu_layers lower",
}


def library_error(error: Exception) -> BackendError:
    """llama-cpp-python cannot be imported."""
    return BackendError(f"llama-cpp-python cannot be loaded ({_one_line(str(error))}); reinstall llama-cpp-python")


def load_error(path: Path, log: Iterable[str]) -> ModelError:
    """`llama_model_load_from_file` returned null after it logged these lines."""
    lines = tuple(log)
    if any(_NOT_REPACKED in line for line in lines):
        return ModelUnsupportedError(
            f"{path} is a DiffusionGemma that is not converted yet; run: dg-lsp models convert {path}"
        )
    if own_name := next(filter(None, map(_OWN_NAME.search, lines)), None):
        return ModelUnsupportedError(
            f"{path} has the architecture {own_name[1]}, which llama.cpp has under another name; "
            "convert the checkpoint with dg-lsp models convert"
        )
    for pattern, kind, problem in LOAD_FAILURES:
        if any(re.search(pattern, line) for line in lines):
            return kind(f"{path} {problem}; {_ADVICE[kind]}")
    reason = next((line for line in lines if "error" in line), lines[0] if lines else "")  # warnings come before it
    logged = f": {_one_line(reason)}" if reason else ""
    return ModelBrokenError(f"{path} cannot be loaded{logged}; download or export it again")


def context_error(log: Iterable[str]) -> ModelError:
    """`llama_init_from_model` returned null after it logged these lines."""
    lines = tuple(log)
    if not lines or any("alloc" in line or "memory" in line for line in lines):
        return ModelMemoryError("the KV cache does not fit into memory; set context_length or num_slots lower")
    return ModelUnsupportedError(f"the model cannot be run: {_one_line(lines[-1])}; use another model")


def decode_error(status: int) -> BackendError:
    """`llama_decode` did not return 0."""
    return BackendError(f"llama.cpp: {DECODE_STATUS.get(status, f'decode returned {status}; see `dg-lsp doctor`')}")


def _one_line(text: str) -> str:
    return " ".join(text.split())[:200]
