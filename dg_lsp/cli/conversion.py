"""`dg-lsp models convert` and `dg-lsp models build-runtime`."""

import subprocess
import time
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from dg_lsp.backends.llamacpp.quantize import FileType, file_type, quantize
from dg_lsp.cli.options import configure
from dg_lsp.cli.printing import print_line, progress_bar, step_progress
from dg_lsp.errors import ModelError, UsageError
from dg_lsp.models import build_runtime
from dg_lsp.models.conversion_script import SCRIPT_TYPES, convert_with_script
from dg_lsp.models.convert import check_target, is_diffusion_gemma, read_parts, side_path, write_model
from dg_lsp.runtime import LLAMA_CPP_VARIABLE, PACKAGE, STOCK, VARIABLE, find_runtime, require_library
from dg_lsp.system import NEUTRAL_FOLDER, python_command, python_environment


def convert_model(
    source: Annotated[Path, Argument(metavar="SOURCE", help="Folder of a checkpoint, or a diffusion-gemma GGUF.")],
    output: Annotated[Path | None, Option("-o", "--output", metavar="OUT.gguf", help="Output file.")] = None,
    kind: Annotated[str | None, Option("--type", metavar="TYPE", help="BF16, Q8_0...; default: unchanged.")] = None,
) -> int:
    """Convert a model to a GGUF that llama.cpp runs.

    A DiffusionGemma gets a second file for its self-conditioning. For other checkpoints llama.cpp's own script runs in
    a Python environment that is made once, with about 1 GB of packages.
    """
    configure({})
    target = convert(source, output, file_type(kind) if kind else None)
    if side_path(target).exists():
        print_line(f"keep {side_path(target).name} beside it", err=True)
    print_line(target)
    return 0


def convert(source: Path, output: Path | None, weight_type: FileType | None) -> Path:
    """Converts a model; returns the main file, which is in the working directory by default."""
    if not source.is_dir() or is_diffusion_gemma(source):
        return _convert_diffusion_gemma(source, output, weight_type)
    target = output or Path(f"{source.resolve().name}{f'-{weight_type.name}' if weight_type else ''}.gguf")
    kind = weight_type.name if weight_type and weight_type.name in SCRIPT_TYPES else "auto"
    smaller = weight_type if kind == "auto" else None  # the script does not write it
    stored = sum(path.stat().st_size for path in source.glob("*.safetensors"))
    check_target(target, stored + (smaller.size(stored, 16) if smaller else stored))
    quantized = partial(quantize, kind=smaller) if smaller else None
    with step_progress() as show_step:
        convert_with_script(source, target, kind, show_step, quantized)
    return target


def _convert_diffusion_gemma(source: Path, output: Path | None, weight_type: FileType | None) -> Path:
    parts = read_parts(source, is_quantized=weight_type is not None)
    kind = weight_type.name if weight_type else parts.embedding_type.name
    target = output or Path(f"{source.resolve().name.removesuffix('.gguf')}-{kind}.gguf")
    smaller = weight_type if weight_type and weight_type.name != parts.embedding_type.name else None
    quantized_bytes = smaller.size(parts.main_size, 8 * parts.embedding_type.block_bytes) if smaller else 0
    check_target(target, parts.size + quantized_bytes)
    with progress_bar(target.name, parts.size + (parts.main_size if smaller else 0)) as advance:
        quantized = partial(quantize, kind=smaller, on_progress=advance) if smaller else None
        write_model(parts, target, advance, quantized)
    return target


def build_changed_runtime(
    backend: Annotated[str | None, Option(metavar="NAME", help="cpu, cuda, metal, vulkan, hip or sycl.")] = None,
    source: Annotated[Path | None, Option("--from", metavar="PATH", help="Source of llama-cpp-python.")] = None,
) -> int:
    """Build the llama.cpp that DiffusionGemma needs, from the source of the installed version."""
    configure({})
    if source is not None and not source.exists():
        raise UsageError(f"{source} does not exist: name {PACKAGE}'s source distribution, or a folder with it")
    if (folder := make_runtime(source, backend)) is not None:
        print_line(folder)
    return 0


def make_runtime(source: Path | None = None, backend: str | None = None) -> Path | None:
    """Builds the changed llama.cpp and reports it on standard error; returns its folder, None if there is no need.

    With a backend, or where there are no overlays, all of llama.cpp is compiled and installed.
    """
    version = require_library().version
    if backend is None and supports_bidirectional():
        print_line(f"nothing to build: {PACKAGE} {version} computes DiffusionGemma as it is", err=True)
        return None
    start = time.monotonic()
    with step_progress() as show_step:
        if backend is not None or not build_runtime.HAS_OVERLAYS:
            backend = backend or build_runtime.DEFAULT_BACKEND
            build_runtime.compile_wheel(backend, source, partial(supports_bidirectional, LLAMA_CPP_VARIABLE), show_step)
            folder, extent = require_library().library.parent, f"{PACKAGE} {version} for {backend}"
        else:
            folder = build_runtime.build_overlay(source, partial(supports_bidirectional, VARIABLE), show_step).folder
            extent = f"one class, loaded before the library of {PACKAGE} {version}"
    print_line(f"built and tested in {time.monotonic() - start:.0f} s ({extent})", err=True)
    if problem := find_runtime().note:
        print_line(f"it will not be loaded: {problem}", err=True)
    return folder


def supports_bidirectional(variable: str = "", folder: Path | None = None) -> bool:
    """Tests llama.cpp in a child process, which a library may end: that of a variable's folder, else the installed one.

    Raises ModelError if it cannot be loaded, or ended the process.
    """
    variables = {VARIABLE: STOCK, LLAMA_CPP_VARIABLE: ""}
    if folder is not None:
        variables[variable] = str(folder.absolute())
    subject = f"the {'changed' if folder else 'installed'} llama.cpp"
    process = run_llama_cpp("library", variables=variables, subject=subject, codes=(0, 10))
    return process.returncode == 0


def run_llama_cpp(
    name: str,
    *arguments: str,
    variables: Mapping[str, str] | None = None,
    subject: str = "llama.cpp",
    codes: Collection[int] = (0,),
) -> subprocess.CompletedProcess[str]:
    """Runs a module of the backend in a child process with these environment variables; an empty one is removed.

    Raises ModelError if it ends with another code.
    """
    environment = python_environment() | dict(variables or {})
    process = subprocess.run(
        python_command(f"dg_lsp.backends.llamacpp.{name}", *arguments),
        env={key: value for key, value in environment.items() if value},
        cwd=NEUTRAL_FOLDER,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if process.returncode not in codes:
        [problem] = process.stderr.strip().splitlines()[-1:] or [f"the process ended with {process.returncode}"]
        raise ModelError(f"{subject} does not run: {problem}; see dg-lsp doctor")
    return process
