"""Which model `auto` is: the best of those that are on this machine and fit into its memory, and why."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dg_lsp.models.memory import Room
from dg_lsp.models.presets import PRESETS, Preset

AUTO = "auto"
DEFAULT = "dg-mini"


@dataclass(frozen=True, slots=True)
class Selection:
    """One model's name, and why it is this one."""

    name: str
    reason: str
    """A sentence."""


def select(rooms: Sequence[Room], is_here: Callable[[Preset], bool]) -> Selection:
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
