"""Which models there are by name, and where their files lie. Opens no model."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from dg_lsp.errors import ModelNotFoundError
from dg_lsp.models.download import fetched_path
from dg_lsp.models.metadata import CONFIGURATION
from dg_lsp.models.presets import PRESETS, Preset


@dataclass(frozen=True, slots=True)
class MemoryPool:
    """Memory that weights may go to."""

    name: str
    """For a person."""
    free: int
    """Bytes."""
    is_gpu: bool


def memory_pools(gpus: Sequence[tuple[str, str, int]], system_free: int) -> tuple[MemoryPool, ...]:
    """The roomiest first within their kind, GPUs before the machine's own memory.

    `gpus` are names, kinds and free bytes of devices. Layers are spread over several GPUs, so these count together; one
    that lives in the machine's memory (`igpu`) has no more than the machine.
    """
    cards = [(name, free) for name, kind, free in gpus if kind == "gpu" and free > 0]
    shared = [(name, min(free or system_free, system_free)) for name, kind, free in gpus if kind == "igpu"]
    found = []
    if cards:
        name = cards[0][0] if len(cards) == 1 else f"{len(cards)} GPUs ({cards[0][0]}, ...)"
        found.append(MemoryPool(name, sum(free for _, free in cards), is_gpu=True))
    found += [MemoryPool(name, free, is_gpu=True) for name, free in shared]
    found.sort(key=lambda room: -room.free)
    return (*found, MemoryPool("the machine's memory", system_free, is_gpu=False))


AUTO = "auto"
DEFAULT = "dg-mini"


@dataclass(frozen=True, slots=True)
class Selection:
    """One model's name, and why it is this one."""

    name: str
    reason: str
    """A sentence."""


def select(rooms: Sequence[MemoryPool], is_here: Callable[[Preset], bool]) -> Selection:
    """The preset of the highest rank that is here and fits into a GPU's free memory; else the bundled model.

    Every step of a model reads all of its weights that are active, and on a CPU that takes too long for models of this
    size: there it is always the bundled one.
    """
    room = next((room for room in rooms if room.is_gpu), None)
    if room is None:
        return Selection(DEFAULT, "llama.cpp uses no GPU here, and this model was made for a CPU")
    ranked = sorted((preset for preset in PRESETS if preset.rank), key=lambda preset: -preset.rank)
    fitting = [preset for preset in ranked if preset.memory_bytes <= room.free]
    here = next((preset for preset in fitting if is_here(preset)), None)
    where = f"{_gigabytes(room.free)} free on {room.name}"
    better = next((preset for preset in fitting if here is None or preset.rank > here.rank), None)
    hint = f"; {better.name} would fit: dg-lsp models pull {better.name}" if better else ""
    if here is not None:
        needed = _gigabytes(here.memory_bytes)
        return Selection(here.name, f"the best model here that fits into {where}, it needs {needed}{hint}")
    if not fitting:
        return Selection(DEFAULT, f"no larger model fits into {where}")
    return Selection(DEFAULT, f"no larger model that fits into {where} is on this machine{hint}")


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB"


@dataclass(frozen=True, slots=True)
class BundledModel:
    """A GGUF file that ships inside the package."""

    name: str
    filename: str

    @property
    def path(self) -> Path:
        """Where the file lies in this installation; llama.cpp reads files only, so no zip import."""
        return Path(str(resources.files("dg_lsp.models") / self.filename))


BUNDLED = (BundledModel("dg-mini", "dg-mini.gguf"),)


def known_names() -> tuple[str, ...]:
    """Names that a model's setting takes beside paths."""
    return (*(model.name for model in (*BUNDLED, *PRESETS)), AUTO)


def preset_named(name: str) -> Preset | None:
    """The preset that comes from a hub under this name."""
    return next((preset for preset in PRESETS if preset.name == name), None)


def ready_path(preset: Preset) -> Path | None:
    """What runs: the preset's file or folder, or what its next step made of it; None while that is not there."""
    if preset.next_step:
        return preset.ready_path if preset.ready_path.is_file() else None
    return fetched_path(preset)


def locate(name: str) -> Path:
    """The readable file of a known name, or of a path, which may be a checkpoint's directory.

    A known name wins: write `./dg-mini` for a file called so.

    Raises:
        ModelNotFoundError: neither a known name nor a readable file, or a known model that was not fetched yet.
    """
    for bundled in BUNDLED:
        if bundled.name == name:
            return _bundled_file(bundled)
    preset = preset_named(name)
    return _file(name) if preset is None else _preset_path(preset)


def _bundled_file(model: BundledModel) -> Path:
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
        size = f"{preset.size / 1e9:.1f} GB"
        raise ModelNotFoundError(
            f"{preset.name} is not on this machine yet: run dg-lsp models pull {preset.name} ({size})"
        )
    raise ModelNotFoundError(f"{preset.name} was fetched and has to be made ready once: run {preset.command(fetched)}")


def _file(name: str) -> Path:
    try:
        path = Path(name).expanduser()
        found = path.exists()
    except (OSError, ValueError, RuntimeError):  # too long, a NUL inside, a home that is not known
        path, found = Path(), False
    if not name or not found:
        raise ModelNotFoundError(_not_found(name))
    if not path.is_file() and not (path / CONFIGURATION).is_file():
        kind = f"a directory without {CONFIGURATION}" if path.is_dir() else "no regular file"
        raise ModelNotFoundError(f"model {name} is {kind}: pass a GGUF file, or the directory of a checkpoint")
    if not os.access(path, os.R_OK):
        raise ModelNotFoundError(f"model {name} cannot be read: check its permissions")
    return path


def _not_found(name: str) -> str:
    names = ", ".join((*(model.name for model in BUNDLED), AUTO))
    if os.sep in name or "/" in name or name.lower().endswith(".gguf"):
        return f"no model file {name}: check the path, or use {names} or a name that dg-lsp models list prints"
    return f"no model {name!r}: use {names}, a name that dg-lsp models list prints, or the path of a GGUF file"
