"""How much memory models can have here. What the GPUs have, their runtime says; the rest is read from the system."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")
_USED = ("memory.current", "memory/memory.usage_in_bytes")
"""Of a container, under both versions of Linux's control groups."""


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


def system_free(groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that a process may still take without swapping, a container's limit kept in mind."""
    import psutil

    free = int(psutil.virtual_memory().available)
    for limit, used in zip(_LIMITS, _USED, strict=True):
        allowed, taken = _number(groups / limit), _number(groups / used)
        if allowed is not None and taken is not None:
            free = min(free, max(0, allowed - taken))
    return free


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):  # no such group, or "max"
        return None
