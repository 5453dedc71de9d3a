"""What is asked of a model that takes and gives text, and what it has said so far. Knows no server."""

from collections.abc import Generator
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from dg_lsp.context.window import Prompt


class Task(StrEnum):
    """What is wanted."""

    FILL = "fill"
    """The text between prefix and suffix."""
    REWRITE = "rewrite"
    """The selection, written anew as the instruction says."""
    CHAT = "chat"
    """The answer to the last turn."""


@dataclass(frozen=True, slots=True)
class Asking:
    """One request."""

    task: Task
    prompt: Prompt
    max_tokens: int
    """Longest answer."""
    num_answers: int = 1
    seed: int = 0
    turns: tuple[tuple[str, str], ...] = ()
    """Of a chat: `system`, `user` or `assistant`, and what was said."""
    session: str = ""
    """What belongs together, such as the requests of one document: the same server may have it cached. Never sent."""


@dataclass(frozen=True, slots=True)
class Said:
    """The answers so far, as many as were begun."""

    texts: tuple[str, ...] = ()
    is_ended: bool = False
    """All of them are complete: the model ended them itself."""
    model: str = ""
    """As the server calls it."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    """Of all answers, as far as the server says."""
    steps: int = 0
    """Forward passes, as far as the server says."""
    canvas_length: int = 0


Answers = Generator[Said, None, None]


class TextModel(Protocol):
    """A model behind a server."""

    @property
    def name(self) -> str:
        """As it is shown to the user."""
        ...

    @property
    def max_prompt_tokens(self) -> int:
        """About how many tokens of a file it is shown."""
        ...

    @property
    def follows_instructions(self) -> bool:
        """Whether it can be asked for a rewrite or in a chat."""
        ...

    def ask(self, asking: Asking, deadline: float) -> Answers:
        """What was said so far, again and again: at once when there is more, else every few milliseconds.

        Ends with the answers, or at the deadline, in `time.monotonic` seconds. Not asking for the next value cancels.

        Raises:
            RemoteError: the server is gone, refuses, or does not speak as it should.
        """
        ...

    def close(self) -> None:
        """Closes all connections."""
        ...
