"""Which models there are by name, and where their files lie. Opens no model."""

import os
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from dg_lsp.errors import ModelNotFoundError
from dg_lsp.models.checkpoint import CONFIGURATION
from dg_lsp.models.fetched import fetched_path
from dg_lsp.models.packaged import PACKAGED, PackagedModel
from dg_lsp.models.presets import PRESETS, Preset
from dg_lsp.models.selection import AUTO


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
    return (*(model.name for model in (*BUNDLED, *PACKAGED, *PRESETS)), AUTO)


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
    for packaged in PACKAGED:
        if packaged.name == name:
            return _pulled_file(packaged)
    preset = preset_named(name)
    return _file(name) if preset is None else _preset_path(preset)


def _bundled_file(model: BundledModel) -> Path:
    if not model.path.is_file():
        raise ModelNotFoundError(
            f"the bundled model {model.name} is missing from this installation ({model.path}): "
            "install dg-lsp again, or pass --model FILE.gguf"
        )
    return model.path


def _pulled_file(model: PackagedModel) -> Path:
    if not model.path.is_file():
        raise ModelNotFoundError(
            f"{model.name} is not on this machine yet: run dg-lsp models pull {model.name} ({model.size / 1e6:.0f} MB)"
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
