"""What the model is shown, still as text."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Prompt:
    """Text around the cursor as the model likes it: LF line ends, spaces for tabs, cut at line ends."""

    prefix: str
    suffix: str
    instruction: str = ""
