"""One class of llama.cpp, changed and compiled, in a small library that stands in front of the installed one.

The installed libllama finds its classes by name when it is loaded, as libraries of ELF systems do. Loaded because the
overlay needs it, it finds the overlay's class first. Everything else, and whatever it computes on, stays as it was.
"""

import sys
from pathlib import Path

from dg_lsp.models.runtime.patch import Patch
from dg_lsp.models.runtime.tools import compiler, run
from dg_lsp.runtime import Installed, library_name

_FLAGS = ("-std=c++17", "-O2", "-DNDEBUG", "-fPIC", "-shared")
_INCLUDES = ("src/models", "src", "include", "ggml/include")
_EXPORTS = "{ global: *18llama_model_gemma4*; local: *; };\n"
"""By mangled names: that class alone, none of the templates that were compiled with it."""


def is_possible() -> bool:
    """macOS and Windows bind every name to one library when that library is made."""
    return sys.platform not in ("darwin", "win32")


def compile_overlay(source: Path, patch: Patch, installed: Installed, folder: Path, log: Path) -> None:
    """Makes the library in `folder` from llama.cpp's `source`, which is not changed.

    Raises:
        ModelRuntimeError: no compiler, it failed, or the patch does not fit.
    """
    program = compiler()
    original = (source / patch.target).read_text(encoding="utf-8")
    changed = folder / Path(patch.target).name
    changed.write_text(patch.apply(original, installed.version), encoding="utf-8")
    exports = folder / "exports"
    exports.write_text(_EXPORTS, encoding="utf-8")
    libraries = installed.library.parent
    run(
        [
            program,
            *_FLAGS,
            *(f"-I{source / name}" for name in _INCLUDES),
            str(changed),
            *("-o", str(folder / library_name())),
            *("-Wl,--no-undefined", "-Wl,--no-as-needed"),
            *(str(path) for name in ("llama", "ggml", "ggml-base") if (path := libraries / f"lib{name}.so").exists()),
            *("-Xlinker", f"--version-script={exports}", "-Xlinker", "-rpath", "-Xlinker", str(libraries)),
        ],
        log,
    )
    changed.unlink()
    exports.unlink()
