"""The known models by name, their files, and the selection of `auto`. Opens no model."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from dg_lsp.errors import ModelNotFoundError
from dg_lsp.models.download import fetched_path
from dg_lsp.models.metadata import CONFIGURATION
from dg_lsp.models.presets import PRESETS, Preset

AUTO = "auto"
DEFAULT = "dg-mini"


@dataclass(frozen=True, slots=True)
class MemoryPool:
    """Memory that can hold weights."""

    name: str
    """For messages."""
    free: int
    """Bytes."""
    is_gpu: bool


def memory_pools(gpus: Sequence[tuple[str, str, int]], system_free: int) -> tuple[MemoryPool, ...]:
    """The memory pools with the most free memory first, GPUs before the machine's memory.

    `gpus` are names, kinds and free bytes of devices. Layers are distributed over all GPUs, so these are one pool; a
    GPU that shares the machine's memory (`igpu`) has no more than the machine.
    """
    gpu_memory = [(name, free) for name, kind, free in gpus if kind == "gpu" and free > 0]
    shared = [(name, min(free or system_free, system_free)) for name, kind, free in gpus if kind == "igpu"]
    pools = [MemoryPool(name, free, is_gpu=True) for name, free in shared]
    if gpu_memory:
        name = gpu_memory[0][0] if len(gpu_memory) == 1 else f"{len(gpu_memory)} GPUs ({gpu_memory[0][0]}, ...)"
        pools.insert(0, MemoryPool(name, sum(free for _, free in gpu_memory), is_gpu=True))
    pools.sort(key=lambda pool: -pool.free)
    return (*pools, MemoryPool("the machine's memory", system_free, is_gpu=False))


@dataclass(frozen=True, slots=True)
class Selection:
    """The model that `auto` selects."""

    name: str
    reason: str
    """For a message."""


def select(pools: Sequence[MemoryPool], is_installed: Callable[[Preset], bool]) -> Selection:
    """The installed preset of the highest rank that fits into a GPU's free memory; else the bundled model.

    Without a GPU it is always the bundled model: every step reads all active weights, and on a CPU that takes too long
    for the larger models.
    """
    pool = next((pool for pool in pools if pool.is_gpu), None)
    if pool is None:
        return Selection(DEFAULT, "llama.cpp uses no GPU here, and this model was made for a CPU")
    ranked = sorted((preset for preset in PRESETS if preset.rank), key=lambda preset: -preset.rank)
    fitting = [preset for preset in ranked if preset.memory_bytes <= pool.free]
    memory = f"{_gigabytes(pool.free)} free on {pool.name}"
    if not fitting:
        return Selection(DEFAULT, f"no larger model fits into {memory}")
    best = next((preset for preset in fitting if is_installed(preset)), None)
    hint = "" if best is fitting[0] else f"; {fitting[0].name} would fit: dg-lsp models pull {fitting[0].name}"
    if best is None:
        return Selection(DEFAULT, f"no larger model that fits into {memory} is on this machine{hint}")
    needed = _gigabytes(best.memory_bytes)
    return Selection(best.name, f"the best model here that fits into {memory}, it needs {needed}{hint}")


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB"


@dataclass(frozen=True, slots=True)
class BundledModel:
    """A GGUF file in this package."""

    name: str
    filename: str

    @property
    def path(self) -> Path:
        """The file in this installation; llama.cpp cannot read a model from a zip file."""
        return Path(str(resources.files("dg_lsp.models") / self.filename))


BUNDLED = (BundledModel("dg-mini", "dg-mini.gguf"),)


def known_names() -> tuple[str, ...]:
    """The model names that settings accept beside paths."""
    return (*(model.name for model in (*BUNDLED, *PRESETS)), AUTO)


def preset_named(name: str) -> Preset | None:
    """The preset with this name."""
    return next((preset for preset in PRESETS if preset.name == name), None)


def ready_path(preset: Preset) -> Path | None:
    """The usable file or folder of a preset; None if it is not fetched, or its next step was not run."""
    if preset.next_step:
        return preset.ready_path if preset.ready_path.is_file() else None
    return fetched_path(preset)


def locate(name: str) -> Path:
    """The file or checkpoint folder of a known name or a path.

    A known name has priority over a file of the same name: write `./dg-mini` for the file.

    Raises:
        ModelNotFoundError: neither a known name nor a readable file, or a known model that is not fetched yet.
    """
    for bundled in BUNDLED:
        if bundled.name == name:
            return _bundled_path(bundled)
    preset = preset_named(name)
    return _given_path(name) if preset is None else _preset_path(preset)


def _bundled_path(model: BundledModel) -> Path:
    if not model.path.is_file():
        raise ModelNotFoundError(
            f"the bundled model {model.name} is missing from this installation ({model.path}): "
            "install dg-lsp again, or pass --model FILE.gguf"
        )
    return model.path


def _preset_path(preset: Preset) -> Path:
    path = ready_path(preset)
    if path is not None:
        return path
    fetched = fetched_path(preset)
    if fetched is None:
        size = _gigabytes(preset.size)
        raise ModelNotFoundError(
            f"{preset.name} is not on this machine yet: run dg-lsp models pull {preset.name} ({size})"
        )
    raise ModelNotFoundError(f"{preset.name} is fetched, but has to be converted once: run {preset.command(fetched)}")


def _given_path(name: str) -> Path:
    try:
        path = Path(name).expanduser()
        exists = bool(name) and path.exists()
    except (OSError, ValueError, RuntimeError):  # too long, a NUL inside, an unknown home directory
        path, exists = Path(), False
    if not exists:
        raise ModelNotFoundError(_not_found(name))
    if not path.is_file() and not (path / CONFIGURATION).is_file():
        kind = f"a directory without {CONFIGURATION}" if path.is_dir() else "not a regular file"
        raise ModelNotFoundError(f"model {name} is {kind}: pass a GGUF file, or the directory of a checkpoint")
    if not os.access(path, os.R_OK):
        raise ModelNotFoundError(f"model {name} cannot be read: check its permissions")
    return path


def _not_found(name: str) -> str:
    names = ", ".join((*(model.name for model in BUNDLED), AUTO))
    if os.sep in name or "/" in name or name.lower().endswith(".gguf"):
        return f"no model file {name}: check the path, or use {names} or a name that dg-lsp models list prints"
    return f"no model {name!r}: use {names}, a name that dg-lsp models list prints, or the path of a GGUF file"
