"""Which fills were shown, and which of them the user took. Counts and lengths only, never texts."""

from collections import OrderedDict
from dataclasses import dataclass, field
from uuid import uuid4

REMEMBERED = 256
"""Items that may still be taken; editors show one at a time and forget it soon."""


@dataclass(slots=True)
class Acceptance:
    """Of one session. Editors that tell nothing leave all but `offered` at 0."""

    offered: int = 0
    shown: int = 0
    accepted: int = 0
    """Items of which at least a part was taken."""
    chars: int = 0
    """UTF-16 units taken, of whole items and of parts."""
    _lengths: OrderedDict[str, int] = field(default_factory=OrderedDict)
    """UTF-16 units of every item that is remembered."""
    _taken: dict[str, int] = field(default_factory=dict)
    _seen: set[str] = field(default_factory=set)

    def offer(self, text: str) -> str:
        """Notes an item on its way to the editor; returns its name."""
        name = uuid4().hex
        self.offered += 1
        self._lengths[name] = len(text.encode("utf-16-le")) // 2
        while len(self._lengths) > REMEMBERED:
            old, _ = self._lengths.popitem(last=False)
            self._taken.pop(old, None)
            self._seen.discard(old)
        return name

    def show(self, name: str) -> None:
        """The editor shows the item; said twice, it counts once."""
        if name in self._lengths and name not in self._seen:
            self._seen.add(name)
            self.shown += 1

    def accept(self, name: str, length: int | None = None) -> None:
        """The user took the item, or its first `length` UTF-16 units, counted from its start."""
        if name not in self._lengths:
            return
        whole, before = self._lengths[name], self._taken.get(name, 0)
        taken = max(before, whole if length is None else min(max(0, length), whole))
        self.accepted += not before and taken > 0
        self.chars += taken - before
        self._taken[name] = taken
