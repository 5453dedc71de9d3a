"""What a preset's folder holds, by the record that a finished fetch leaves there. Fetches nothing."""

import json
from dataclasses import dataclass
from pathlib import Path

from dg_lsp.models.presets import Preset
from dg_lsp.models.sources import SourceFile

RECORD = "fetched.json"
"""What lies in a preset's folder, and where it is from; written last."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a finished fetch left."""

    repository: str
    commit: str
    files: tuple[SourceFile, ...]


def fetched_path(preset: Preset) -> Path | None:
    """The preset's GGUF file, or its folder for one of several files; None unless all of it is there."""
    record = read_record(preset)
    if record is None or not all(is_whole(preset.folder / file.path, file.size) for file in record.files):
        return None
    weights = [file.path for file in record.files if file.path.endswith(".gguf")]
    return preset.folder / weights[0] if weights else preset.folder


def read_record(preset: Preset) -> Fetched | None:
    """What the last finished fetch says of itself; None where there was none."""
    try:
        tree = json.loads((preset.folder / RECORD).read_text(encoding="utf-8"))
        files = tuple(SourceFile(**file) for file in tree["files"])
        return Fetched(tree["repository"], tree["commit"], files) if files else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def forget(preset: Preset) -> None:
    """Removes what was fetched, which something else was made of."""
    record = read_record(preset)
    (preset.folder / RECORD).unlink(missing_ok=True)
    for file in record.files if record is not None else ():
        (preset.folder / file.path).unlink(missing_ok=True)


def is_whole(path: Path, size: int) -> bool:
    """There is such a file, of this size."""
    return path.is_file() and path.stat().st_size == size
