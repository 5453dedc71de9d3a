"""Who goes first."""

from enum import IntEnum


class Urgency(IntEnum):
    """Of a request, the most urgent first. One that comes while a less urgent one runs has the model at once."""

    TYPED = 0
    """A completion that nobody asked for by a key; it is worth something until the next character."""
    INVOKED = 1
    """A completion that was asked for."""
    REWRITE = 2
    CHAT = 3
    GUESS = 4
    """What will probably be asked for next."""
    WARM_UP = 5
    """A prompt that is only to be decoded."""
