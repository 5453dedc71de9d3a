"""`dg-lsp models`: lists, shows, pulls, removes and converts models, and builds the llama.cpp that some of them need.

A pull goes on at the stage that was interrupted.
"""

import contextlib
import dataclasses
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from dg_lsp.backends.llamacpp.quantize import FileType, file_type, quantize
from dg_lsp.canvas.fim import FIM_FAMILIES
from dg_lsp.cli import loading
from dg_lsp.cli.options import Json, ModelOptions, configure
from dg_lsp.cli.printing import print_facts, print_json, print_line, print_table, progress_bar, step_progress, warn
from dg_lsp.cli.trial import trial_fill
from dg_lsp.errors import DgLspError, ModelError, UsageError, size_text
from dg_lsp.gguf import map_file_errors
from dg_lsp.models import build_runtime, registry
from dg_lsp.models import convert as conversion
from dg_lsp.models.checkpoint import NUMBER_FORMATS, name_of
from dg_lsp.models.download import check_space, fetch, map_disk_errors
from dg_lsp.models.registry import Preset, is_begun
from dg_lsp.models.selection import Machine, fit
from dg_lsp.runtime import LLAMA_CPP_VARIABLE, PACKAGE, RUNTIME_VARIABLE, STOCK, find_runtime, require_library
from dg_lsp.settings import parse_settings
from dg_lsp.system import NEUTRAL_FOLDER, free_disk, is_present, python_command, python_environment, system_free

_TEST_SECONDS = 20.0
"""Limit of the test fill: an unfinished fill shows just as well that the model runs."""
_ENVIRONMENT_SIZE = 1_100_000_000
"""Of the Python environment of llama.cpp's script, with the PyTorch that has no CUDA."""


def list_models(as_json: Json = False) -> int:
    """List the known models: whether each is here and fits, its size, hardware and licence."""
    configure({})
    machine = loading.this_machine()
    models = [_listed(preset, machine) for preset in (*registry.BUNDLED, *registry.PRESETS)]
    if as_json:
        print_json(models)
        return 0
    rows = [("model", "here", "fits here", "size", "made for", "licence")]
    for facts in models:
        here = "yes" if facts["path"] else "in part" if facts["is_begun"] else "no"
        licence = facts["licence"].partition(" (")[0]
        rows.append((facts["name"], here, facts["fit"], size_text(facts["size_bytes"]), facts["hardware"], licence))
    print_table(rows)
    print_line("", "dg-lsp models show MODEL describes one, dg-lsp models recommend names the best for this machine.")
    return 0


def _listed(preset: Preset, machine: Machine) -> dict[str, Any]:
    return {
        "name": preset.name,
        "kind": "diffusion" if preset.is_diffusion else "autoregressive",
        "path": str(preset.path) if preset.path else None,
        "is_begun": is_begun(preset),
        "fit": fit(preset, machine),
        "size_bytes": preset.size,
        "memory_bytes": preset.memory_bytes,
        "quantization": preset.quantization,
        "hardware": preset.hardware,
        "licence": preset.licence,
        "note": preset.note,
    }


def show_model(
    model: Annotated[
        str | None, Argument(metavar="MODEL", help="A name, or the path of a GGUF file; default: that of the settings.")
    ] = None,
) -> int:
    """Show a model's file, specification and metadata; or, before it is pulled, its preset."""
    settings = loading.with_model_chosen(configure(ModelOptions(model=model).tree))
    preset = registry.preset_named(settings.model.name)
    if preset is not None:
        print_facts(_details(preset))
        if preset.path is None:
            return 0
        print_line("from the file:")
    # nothing is computed, so no layer goes to a GPU
    loaded = loading.load_model(parse_settings(ModelOptions(gpu_layers=0).tree, settings))
    with closing(loaded.weights):
        facts = loaded.facts()
    if loaded.spec.fim is not None and (family := FIM_FAMILIES.get(loaded.spec.fim.family)):
        facts |= {"fim_prompt": family.prompt, "fim_sources": family.sources}
    print_facts(facts)
    for key, value in loaded.spec.metadata:
        print_line(f"  {key} = {value}")
    if loaded.warning:
        warn(loaded.warning)
    return 0


def _details(preset: Preset) -> dict[str, Any]:
    """What `models list --json` has, and everything else that is known of the preset."""
    pin = registry.read_pin(preset)
    facts = _listed(preset, loading.this_machine()) | asdict(preset) | {"pinned_commit": pin.commit if pin else ""}
    return {name: value for name, value in facts.items() if value and name not in ("size", "memory", "active")}


def pull_model(
    name: Annotated[str, Argument(metavar="NAME", help="A name from `dg-lsp models list`.")],
    accept_licence: Annotated[bool, Option("--accept-licence", help="Accept the model's licence.")] = False,
    revision: Annotated[str | None, Option(metavar="REV", help="Another version of the model's repository.")] = None,
) -> int:
    """Fetch a model, convert and quantize it if necessary, and test it.

    An interrupted command is continued by running it again.
    """
    configure({})
    if name in (model.name for model in registry.BUNDLED):
        print_line(f"{name} is bundled: there is nothing to fetch", err=True)
        return 0
    preset = registry.preset_named(name)
    if preset is None:
        problem = f"no model {name!r} to fetch{registry.suggestion(name)}"
        raise UsageError(f"{problem}: use a name from dg-lsp models list, or the path of a file")
    if revision is not None:  # the checksum of one version does not apply to another
        if not preset.repository:
            raise UsageError(f"{name} has no other versions: leave --revision out")
        preset = dataclasses.replace(preset, revision=revision, sha256="")
    pull = Pull(preset, is_other_version=revision is not None)
    if pull.stages:
        if pull.stages[0].name == "download":
            require_licence(preset, accepted=accept_licence)
        print_line(*pull.announcement(), err=True)
        pull.run()
    print_line(preset.path)
    return 0


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of the work that is left for a model."""

    name: str
    text: str
    run: Callable[[], object]
    disk_bytes: int = 0  # that it writes before it removes others


@dataclass(frozen=True, slots=True)
class Pull:
    """The stages of fetching a model that are left on this machine."""

    preset: Preset
    is_other_version: bool = False  # it replaces the present one

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages that are left, in order."""
        preset = self.preset
        is_ready = preset.path is not None and not self.is_other_version
        is_fetched = is_ready or (registry.fetched_path(preset) is not None and not self.is_other_version)
        is_tested = is_ready and registry.is_tested(preset)
        stages: list[Stage] = []
        if not is_fetched:
            download = partial(fetch, preset, is_other_version=self.is_other_version)
            text = f"download {size_text(preset.fetched_size)}"
            stages.append(Stage("download", text, download, preset.fetched_size))
        if preset.needs_conversion and not is_ready:
            target = f" to {preset.quantization}, {size_text(preset.size)}" if preset.is_checkpoint else ""
            environment = _ENVIRONMENT_SIZE if preset.is_checkpoint and not conversion.has_environment() else 0
            packages = ", with Python packages of 1 GB or more, fetched once" if environment else ""
            size = preset.download_size + preset.size + environment  # before and after it is quantized
            stages.append(Stage("convert", f"convert it{target}{packages}", self._convert, size))
        if preset.needs_runtime and not is_tested and find_runtime().runtime is None:
            text = "build the llama.cpp that it needs, if the installed one lacks the change"
            stages.append(Stage("build", text, make_runtime))
        if not is_tested:
            stages.append(Stage("test", "test it with one fill", self._test))
        return tuple(stages)

    def disk_bytes(self) -> int:
        """The number of bytes that the remaining stages write before they remove others."""
        return sum(stage.disk_bytes for stage in self.stages)

    def announcement(self) -> tuple[str, str]:
        """What is done, and the disk and memory that it takes."""
        preset = self.preset
        disk = f"disk: {size_text(self.disk_bytes())} at most, {size_text(free_disk(preset.folder))} free"
        memory = f"memory: {size_text(preset.memory_bytes)} to use it, {size_text(system_free())} free"
        texts = ", ".join(stage.text for stage in self.stages)
        return f"{preset.name}: {texts}", f"{disk}; {memory}; made for: {preset.hardware}"

    def run(self) -> None:
        """Runs the remaining stages. Raises `ModelError` while another process does."""
        preset = self.preset
        with map_disk_errors(preset.folder):
            preset.folder.mkdir(parents=True, exist_ok=True)
            with _lock(preset):
                stages = self.stages
                for remnant in (*preset.folder.glob(".dg-lsp-*"), preset.folder / ".cache"):  # of a killed process
                    shutil.rmtree(remnant, ignore_errors=True)
                if "download" in [stage.name for stage in stages] and not self.is_other_version:
                    present = sum(path.stat().st_size for path in preset.folder.rglob("*") if path.is_file())
                    check_space(preset.folder, self.disk_bytes() - present)
                for number, stage in enumerate(stages, 1):
                    print_line(f"[{number}/{len(stages)}] {stage.name}", err=True)
                    stage.run()
                    if stage.name != "test":  # the mark is that of the earlier files
                        (preset.folder / registry.TESTED).unlink(missing_ok=True)

    def _convert(self) -> None:
        """Converts the download and removes it: the converted model has the same weights."""
        preset = self.preset
        fetched = registry.fetched_path(preset)
        assert fetched is not None
        for old in (preset.converted_path, conversion.side_path(preset.converted_path)):
            old.unlink(missing_ok=True)
        weight_type = file_type(preset.quantization) if fetched.is_dir() else None
        convert(fetched, preset.converted_path, weight_type)
        registry.forget(preset)

    def _test(self) -> None:
        """Completes one line. Raises ModelError if the model cannot be loaded or run here."""
        try_model(self.preset.name)
        with contextlib.suppress(OSError):
            (self.preset.folder / registry.TESTED).touch()


def _lock(preset: Preset) -> contextlib.AbstractContextManager[object]:
    """The lock of the files of a model. Raises `ModelError` while another process pulls or removes them."""
    from filelock import FileLock, Timeout

    try:
        return FileLock(preset.record_path.with_suffix(".lock")).acquire(blocking=False)
    except Timeout:
        raise ModelError(f"{preset.name} is being pulled by another process: wait for it") from None


def try_model(name: str) -> None:
    """Completes one line and reports it on standard error. Raises ModelError if the model cannot be loaded or run.

    An empty completion is a warning: the model runs, but a trained one completes this line.
    """
    # the command has already reported which keys of the settings files it ignores
    settings = configure(ModelOptions(model=name).tree, lambda _: None)
    try:
        with loading.timed_engine(settings, "python") as (engine, load_ms):
            result = trial_fill(engine, _TEST_SECONDS)
    except DgLspError as error:
        raise ModelError(f"{name} is on this machine, but its test fill failed: {error}") from error
    times = f"loaded in {load_ms / 1e3:.1f} s, {result.timings.total:.0f} ms with {result.decoder.value}"
    print_line(f"return -> {result.text!r} ({times})", err=True)
    if not result.candidates:
        problem = f"completed no simple line within {_TEST_SECONDS:.0f} s: the result {result.problem}"
        warn(f"{name} {problem}; see dg-lsp models show {name}")


def require_licence(preset: Preset, *, accepted: bool) -> None:
    """Shows the licence. Raises UsageError if the user does not accept its terms."""
    origin = preset.repository or "a package index"
    print_line(f"{preset.name} comes from {origin}; its licence: {preset.licence}", err=True)
    if not preset.terms or accepted:
        return
    if not sys.stdin.isatty():
        raise UsageError(
            f"the licence of {preset.name} must be accepted first: read {preset.terms}, then add --accept-licence"
        )
    if not typer.confirm(f"Do you accept the terms at {preset.terms}?", err=True):
        raise UsageError("nothing was fetched: the model may be used only under its licence")


def remove_model(name: Annotated[str, Argument(metavar="NAME", help="A name from `dg-lsp models list`.")]) -> int:
    """Remove a pulled model, or the parts of an interrupted download."""
    configure({})
    preset = registry.preset_named(name)
    if preset is None:
        problem = f"{name} cannot be pulled or removed{registry.suggestion(name)}"
        raise UsageError(f"{problem}: use the name of a pulled model from dg-lsp models list")
    if not is_present(preset.folder):
        raise UsageError(f"{name} is not on this machine: there is nothing to remove")
    with map_disk_errors(preset.folder, "close the programs that use the model"), _lock(preset):
        freed = registry.remove(preset)
    print_line(f"removed {preset.folder} ({size_text(freed)})")
    return 0


# conversion, and the changed llama.cpp


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
    if conversion.side_path(target).exists():
        print_line(f"keep {conversion.side_path(target).name} beside it", err=True)
    print_line(target)
    return 0


def convert(source: Path, output: Path | None, weight_type: FileType | None) -> Path:
    """Converts a model; returns the main file, which is in the working directory by default."""
    with map_file_errors(source):
        is_folder = source.is_dir()
    if not is_folder or conversion.is_diffusion_gemma(source):
        return _convert_diffusion_gemma(source, output, weight_type)
    target = output or Path(f"{name_of(source)}{f'-{weight_type.name}' if weight_type else ''}.gguf")
    kind = weight_type.name if weight_type and weight_type.name in NUMBER_FORMATS else "auto"
    smaller = weight_type if kind == "auto" else None  # the script does not write it
    stored = sum(path.stat().st_size for path in source.glob("*.safetensors"))
    conversion.check_target(target, stored + (smaller.size(stored, 16) if smaller else stored))
    quantized = partial(quantize, kind=smaller) if smaller else None
    with step_progress() as show_step:
        conversion.convert_with_script(source, target, kind, show_step, quantized)
    return target


def _convert_diffusion_gemma(source: Path, output: Path | None, weight_type: FileType | None) -> Path:
    parts = conversion.read_parts(source, is_quantized=weight_type is not None)
    kind = weight_type.name if weight_type else parts.embedding_type.name
    target = output or Path(f"{name_of(source).removesuffix('.gguf')}-{kind}.gguf")
    smaller = weight_type if weight_type and weight_type.name != parts.embedding_type.name else None
    quantized_bytes = smaller.size(parts.main_size, 8 * parts.embedding_type.block_bytes) if smaller else 0
    conversion.check_target(target, parts.size + quantized_bytes)
    with progress_bar(target.name, parts.size + (parts.main_size if smaller else 0)) as advance:
        quantized = partial(quantize, kind=smaller, on_progress=advance) if smaller else None
        conversion.write_model(parts, target, advance, quantized)
    return target


def build_changed_runtime(
    backend: Annotated[str | None, Option(metavar="NAME", help="cpu, cuda, metal, vulkan, hip or sycl.")] = None,
    source: Annotated[Path | None, Option("--from", metavar="PATH", help="Source of llama-cpp-python.")] = None,
) -> int:
    """Build the llama.cpp that DiffusionGemma needs, from the source of the installed version."""
    configure({})
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
            is_changed = partial(supports_bidirectional, RUNTIME_VARIABLE)
            folder = build_runtime.build_overlay(source, is_changed, show_step).folder
            extent = f"one class, loaded before the library of {PACKAGE} {version}"
    print_line(f"built and tested in {time.monotonic() - start:.0f} s ({extent})", err=True)
    if problem := find_runtime().note:
        print_line(f"it will not be loaded: {problem}", err=True)
    return folder


def supports_bidirectional(variable: str = "", folder: Path | None = None) -> bool:
    """Tests llama.cpp in a child process, which a library may end: that of a variable's folder, else the installed one.

    Raises ModelError if it cannot be loaded, or ended the process.
    """
    variables = {RUNTIME_VARIABLE: STOCK, LLAMA_CPP_VARIABLE: ""}
    if folder is not None:
        variables[variable] = str(folder.absolute())
    return run_llama_cpp("library", variables=variables, codes=(0, 10)).returncode == 0


def run_llama_cpp(
    name: str,
    *arguments: str,
    variables: Mapping[str, str] | None = None,
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
        raise ModelError(f"llama.cpp does not run: {problem}; see dg-lsp doctor")
    return process
