"""A run on disk: weights, their average, optimizers, data and noise generators, counters. Written atomically."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch


@dataclass(slots=True)
class Progress:
    """What a run counts; it grows with every step, so it is not frozen."""

    step: int = 0
    tokens: int = 0  # clean tokens seen, padding included
    seconds: float = 0.0  # of training, over all parts of the run
    log: list[dict[str, Any]] = field(default_factory=list)  # validations


def save(path: Path, content: dict[str, Any]) -> None:
    """Writes beside `path`, then replaces it: a reader never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    torch.save(content, partial)
    partial.replace(path)


def load(path: Path) -> dict[str, Any]:
    """What `save` wrote. A file of our own: it holds numpy arrays and generator states, so it is unpickled in full."""
    return dict(torch.load(path, map_location="cpu", weights_only=False))
