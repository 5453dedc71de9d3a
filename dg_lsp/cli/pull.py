"""`dg-lsp models pull`: downloads a model, converts, quantizes and tests it; goes on where it was interrupted."""

import contextlib
import dataclasses
import math
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from dg_lsp.cli import conversion, loading
from dg_lsp.cli.options import overrides
from dg_lsp.cli.printing import agrees, print_line, print_lines, size_text, warn
from dg_lsp.errors import DgLspError, ModelError, UsageError
from dg_lsp.runtime import COMMAND, find_runtime
from dg_lsp.system import VARIABLE

if TYPE_CHECKING:
    from dg_lsp.models.registry import Preset

_BITS_PER_SECOND = 100e6
"""Of the connection that the time of a download is given for."""
_TEST_MS = 20_000
"""Limit of the test fill: an unfinished one shows as well that the model runs."""
_QUANTIZING_MEMORY = 2_500_000_000
_ENVIRONMENT_SIZE = 1_100_000_000
"""Of the Python environment of llama.cpp's script, with the PyTorch that has no CUDA."""


def pull_model(
    name: Annotated[str, Argument(metavar="NAME", help="A name from `dg-lsp models list`.")],
    accept_licence: Annotated[bool, Option("--accept-licence", help="Accept the model's licence.")] = False,
    file: Annotated[str | None, Option(metavar="NAME", help="Another GGUF file of the model's repository.")] = None,
    revision: Annotated[str | None, Option(metavar="REV", help="Another version of the model's repository.")] = None,
) -> int:
    """Fetch a model, convert and quantize it if necessary, and test it.

    An interrupted command is continued by running it again.
    """
    from dg_lsp.models import registry

    loading.configure({})
    is_other = file is not None or revision is not None
    preset, is_bundled = registry.preset_named(name), name in (model.name for model in registry.BUNDLED)
    if is_other and (is_bundled or (preset is not None and preset.wheels)):
        raise UsageError(f"{name} has no other files or versions: leave --file and --revision out")
    if is_bundled:
        print_line(f"{name} is bundled: there is nothing to fetch", err=True)
        return 0
    if preset is None:
        problem = f"no model {name!r} to fetch{registry.suggestion(name)}"
        raise UsageError(f"{problem}: use a name from dg-lsp models list, or the path of a file")
    if is_other:
        patterns = (file,) if file is not None else preset.patterns
        # the checksum of one version does not apply to another
        preset = dataclasses.replace(preset, patterns=patterns, revision=revision or preset.revision, sha256="")
    pull = Pull(preset, is_other=is_other)
    if pull.stages:
        if "download" in pull.stages:
            agree(preset, accepted=accept_licence)
        if file is None:  # the size of another file is known only to the hub
            print_lines(pull.announcement(), err=True)
        pull.run()
    print_line(preset.path)
    return 0


@dataclass(frozen=True, slots=True)
class Pull:
    """The remaining stages of one model."""

    preset: "Preset"
    is_other: bool = False  # another file or version, which replaces the present one

    @property
    def stages(self) -> tuple[str, ...]:
        """The names of the stages that are not done yet, in order."""
        from dg_lsp.models import registry

        preset = self.preset
        is_ready = preset.path is not None and not self.is_other
        is_converted = is_ready or (preset.unquantized_path.is_file() and not self.is_other)
        is_fetched = is_converted or (registry.fetched_path(preset) is not None and not self.is_other)
        is_tested = is_ready and (preset.folder / registry.TESTED).is_file()
        is_needed = {
            "download": not is_fetched,
            "convert": preset.needs_conversion and not is_converted,
            "quantize": not is_ready and self._is_quantized,
            "build": not is_tested and self._needs_runtime,
            "test": not is_tested,
        }
        return tuple(stage for stage, is_left in is_needed.items() if is_left)

    @property
    def _is_quantized(self) -> bool:
        """Whether a checkpoint becomes a quantized file; the GGUF of a DiffusionGemma is quantized already."""
        if not (self.preset.needs_conversion and self.preset.is_checkpoint):
            return False
        from dg_lsp.models.conversion_script import SCRIPT_TYPES  # numpy takes 0.2 s: an offline error shows at once

        return self.preset.quantization not in SCRIPT_TYPES

    @property
    def _needs_runtime(self) -> bool:
        """Whether the model runs only on a changed llama.cpp that is not there yet."""
        if not (self.preset.needs_conversion and self.preset.needs_runtime):
            return False
        search = find_runtime()
        return search.runtime is None and (not search.note or COMMAND in search.note)

    def disk_bytes(self) -> int:
        """The largest number of bytes that the remaining stages write before they remove others."""
        stages = self.stages
        num_copies = len({"download", "convert"}.intersection(stages))
        model = num_copies * self.preset.fetched_size or ("quantize" in stages) * self.preset.size
        return model + self._needs_environment(stages) * _ENVIRONMENT_SIZE

    def _needs_environment(self, stages: tuple[str, ...]) -> bool:
        if "convert" not in stages or not self.preset.is_checkpoint:
            return False
        from dg_lsp.models.conversion_script import has_environment

        return not has_environment()

    def announcement(self) -> Iterator[str]:
        """What is done, the time of the download, and the disk and memory that it takes."""
        from dg_lsp.system import free_disk, system_free

        preset, stages = self.preset, self.stages
        size, last = preset.fetched_size, size_text(preset.size)
        minutes = math.ceil(8 * size / _BITS_PER_SECOND / 60)
        texts = {
            "download": f"download {size_text(size)} ({minutes} min at 100 Mbit/s)",
            "convert": "convert it",
            "quantize": f"quantize it to {preset.quantization}, {last}",
            "build": "build the changed class of llama.cpp that it needs, if the installed one lacks the change",
            "test": "test it with one fill",
        }
        if self._needs_environment(stages):
            texts["convert"] += " with Python packages of 1 GB or more, fetched once"
        yield f"{preset.name}: {', '.join(texts[stage] for stage in stages)}"
        free = size_text(free_disk(preset.folder))
        yield f"disk: {size_text(self.disk_bytes())} at most, {last} afterwards; {free} free"
        quantizing = f", {size_text(_QUANTIZING_MEMORY)} to quantize it" if "quantize" in stages else ""
        memory = size_text(preset.memory_bytes)
        yield f"memory: {memory} to use it{quantizing}; {size_text(system_free())} free; made for: {preset.hardware}"

    def run(self) -> None:
        """Runs the remaining stages."""
        from dg_lsp.models import registry
        from dg_lsp.models.download import check_space, explained_disk_errors, fetch

        preset, stages = self.preset, self.stages
        runs: dict[str, Callable[[], object]] = {
            "download": partial(fetch, preset, is_other=self.is_other),
            "convert": self._convert,
            "quantize": self._quantize,
            "build": conversion.make_runtime,
            "test": self._test,
        }
        with explained_disk_errors(preset.folder, f"set {VARIABLE} to another folder"):
            preset.folder.mkdir(parents=True, exist_ok=True)
            for left in preset.folder.glob(".dg-lsp-*"):  # of a process that was killed
                shutil.rmtree(left, ignore_errors=True)
            (preset.folder / registry.TESTED).unlink(missing_ok=True)
        if not self.is_other:
            present = [path for path in preset.folder.rglob("*") if path.is_file()] if "download" in stages else []
            check_space(preset.folder, self.disk_bytes() - sum(path.stat().st_size for path in present))
        for number, stage in enumerate(stages, 1):
            print_line(f"[{number}/{len(stages)}] {stage}", err=True)
            runs[stage]()

    def _convert(self) -> None:
        """Converts the download and removes it: the converted model has the same weights."""
        from dg_lsp.models import registry
        from dg_lsp.models.conversion_script import convert_with_script
        from dg_lsp.models.convert import side_path

        preset = self.preset
        fetched = registry.fetched_path(preset)
        assert fetched is not None
        for old in (preset.converted_path, side_path(preset.converted_path), preset.unquantized_path):
            old.unlink(missing_ok=True)
        if fetched.is_dir():
            target = preset.unquantized_path if self._is_quantized else preset.converted_path
            kind = "auto" if self._is_quantized else preset.quantization
            with conversion.steps() as show_step:
                convert_with_script(fetched, target, kind, show_step)
        else:
            conversion.convert_diffusion_gemma(fetched, preset.converted_path, None)
        registry.forget(preset)

    def _quantize(self) -> None:
        from dg_lsp.backends.llamacpp.quantize import file_type, quantize
        from dg_lsp.models.convert import new_file

        preset, kind = self.preset, file_type(self.preset.quantization)
        num_bytes = preset.unquantized_path.stat().st_size
        with (
            conversion.byte_progress(f"quantizing to {kind.name}", num_bytes) as advance,
            new_file(preset.converted_path) as new,
        ):
            quantize(preset.unquantized_path, new, kind, advance)
        preset.unquantized_path.unlink()

    def _test(self) -> None:
        """Completes one line. Raises ModelError if the model cannot be loaded or run here."""
        from dg_lsp.models import registry

        try_model(self.preset.name)
        with contextlib.suppress(OSError):
            (self.preset.folder / registry.TESTED).touch()


def try_model(name: str) -> None:
    """Completes one line and reports it on standard error. Raises ModelError if the model cannot be loaded or run.

    An empty completion is a warning: the model runs, but a trained one completes this line.
    """
    from dg_lsp.postprocess.validate import Reason

    request = loading.trial_request("pull.py", _TEST_MS)
    # the command has reported what is ignored of the files
    settings = loading.configure(overrides(model=name), lambda _: None)
    try:
        with loading.timed_engine(settings, request.snapshot.language) as (engine, load_ms):
            result = engine.fill(request)
    except DgLspError as error:
        raise ModelError(f"{name} is on this machine, but its test fill failed: {error}") from error
    text = repr(result.text) if result.candidates else f"no completion: the result {result.problem}"
    times = f"loaded in {load_ms / 1e3:.1f} s, {result.timings.total:.0f} ms with {result.decoder.value}"
    print_line(f"return -> {text} ({times})", err=True)
    if result.candidates:
        return
    if result.reason == Reason.UNFINISHED:
        warn(f"{name} needs more than {_TEST_MS / 1e3:.0f} s for a line here: dg-lsp models list has smaller models")
    else:
        problem = "did not complete a simple line: its weights or prompt may be wrong"
        warn(f"{name} {problem}, see dg-lsp models show {name}")


def agree(preset: "Preset", *, accepted: bool) -> None:
    """Shows the licence. Raises UsageError if the user does not accept its terms."""
    origin = preset.repository or "a package index"
    print_line(f"{preset.name} comes from {origin}; its licence: {preset.licence}", err=True)
    if not preset.terms or accepted:
        return
    if not sys.stdin.isatty():
        raise UsageError(
            f"the licence of {preset.name} must be accepted first: read {preset.terms}, then add --accept-licence"
        )
    if not agrees(f"Do you accept the terms at {preset.terms}?", by_default=False):
        raise UsageError("nothing was fetched: the model may be used only under its licence")
