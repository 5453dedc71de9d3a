"""When an editor asks, and how long it shows what it got. Loads nothing."""

from dataclasses import dataclass
from enum import StrEnum


class TypeThrough(StrEnum):
    """What an editor does when a key continues the item that it shows."""

    ASK = "ask"
    """The item stays, and every key asks again, as in VS Code."""
    KEEP = "keep"
    """The item stays, and nothing is asked while it does, as in llama.vim."""
    DISMISS = "dismiss"
    """The item goes at every key, and the next answer is shown, as in Neovim 0.12."""


@dataclass(frozen=True, slots=True)
class Editor:
    """When requests are sent."""

    debounce_ms: float = 50.0
    """From a key to its request; VS Code's least. Neovim 0.12 waits 200, llama.vim not at all."""
    type_through: TypeThrough = TypeThrough.ASK
