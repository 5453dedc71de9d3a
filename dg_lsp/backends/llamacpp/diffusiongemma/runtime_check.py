"""The functions that only the changed llama.cpp has, and the check that it is loaded.

`python -m dg_lsp.backends.llamacpp.diffusiongemma.runtime_check` exits with 0 if it is, and with 10 if it is not.
"""

import ctypes
import functools
import os
import sys
from pathlib import Path
from typing import Any

from dg_lsp.backends.llamacpp.library import library
from dg_lsp.errors import ModelRuntimeError
from dg_lsp.runtime import COMMAND, STOCK, VARIABLE

NO = 10
_VERSION = 3  # of `models/gemma4_reduction.h`


@functools.cache
def functions() -> Any:
    """The functions of `models/gemma4_reduction.h`; None if the loaded llama.cpp has none, or those of another version.

    The same build has DiffusionGemma's attention, which the stock llama.cpp computes wrongly.
    """
    native = library().api._lib  # noqa: SLF001
    if not hasattr(native, "dg_reduction_version") or native.dg_reduction_version() != _VERSION:
        return None
    number, pointer = ctypes.c_int, ctypes.c_void_p
    native.dg_reduction_set.argtypes = [
        *(number, number, pointer, ctypes.c_float),
        *(pointer, number, pointer, number, pointer, pointer, pointer),
    ]
    native.dg_reduction_set.restype = None
    native.dg_reduction_read.argtypes = [pointer, number, pointer, number, number, number]
    return native


def runs_diffusiongemma() -> bool:
    """Whether the loaded llama.cpp computes DiffusionGemma's attention and reduces its logits."""
    return functions() is not None


def require_runtime(path: Path) -> None:
    """Raises `ModelRuntimeError` if this llama.cpp would compute the DiffusionGemma in `path` wrongly."""
    if runs_diffusiongemma():
        return
    note = f" ({library().note})" if library().note else ""
    problem = f"is a DiffusionGemma, and llama.cpp as installed computes it wrongly{note}"
    raise ModelRuntimeError(f"{path} {problem}; run: {COMMAND}")


def main() -> None:
    """Exits with the answer, or with a message if the environment names a runtime that cannot be loaded."""
    if os.environ.get(VARIABLE, STOCK) != STOCK and library().runtime is None:
        sys.exit(library().note)
    sys.exit(0 if runs_diffusiongemma() else NO)


if __name__ == "__main__":
    main()
