"""How much memory models can have here. What the GPUs have, their runtime says."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Room:
    """Memory that weights may go to."""

    name: str
    """For a person."""
    free: int
    """Bytes."""
    is_gpu: bool


def rooms(gpus: Sequence[tuple[str, str, int]], system_free: int) -> tuple[Room, ...]:
    """The roomiest first within their kind, GPUs before the machine's own memory.

    `gpus` are names, kinds and free bytes of devices. Layers are spread over several GPUs, so these count together; one
    that lives in the machine's memory (`igpu`) has no more than the machine.
    """
    cards = [(name, free) for name, kind, free in gpus if kind == "gpu" and free > 0]
    shared = [(name, min(free or system_free, system_free)) for name, kind, free in gpus if kind == "igpu"]
    found = []
    if cards:
        name = cards[0][0] if len(cards) == 1 else f"{len(cards)} GPUs ({cards[0][0]}, ...)"
        found.append(Room(name, sum(free for _, free in cards), is_gpu=True))
    found += [Room(name, free, is_gpu=True) for name, free in shared]
    found.sort(key=lambda room: -room.free)
    return (*found, Room("the machine's memory", system_free, is_gpu=False))
