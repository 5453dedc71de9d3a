"""The last lines that llama.cpp wanted to write. Nothing of it ever reaches stdout or stderr."""

from collections import deque

MAX_LINES = 50
_DEBUG, _WARN, _ERROR = 1, 3, 4  # enum ggml_log_level
_CONTINUED = 5  # belongs to the line before


class NativeLog:
    """Keeps lines for `doctor`, and warnings and errors apart, since a load writes hundreds of lines."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=MAX_LINES)
        self._trouble: deque[str] = deque(maxlen=MAX_LINES)

    def write(self, level: int, text: bytes) -> None:
        """One call of llama.cpp's log callback; may come from any of its threads."""
        line = text.decode("utf-8", "replace").rstrip("\n")
        # Progress dots and empty ends of lines say nothing afterwards; debug lines would push out the rest.
        if level in (_DEBUG, _CONTINUED) or not line.strip("."):
            return
        self._lines.append(line)
        if level in (_WARN, _ERROR):
            self._trouble.append(line)

    @property
    def lines(self) -> tuple[str, ...]:
        """Oldest first."""
        return tuple(self._lines)

    @property
    def trouble(self) -> tuple[str, ...]:
        """Warnings and errors, oldest first."""
        return tuple(self._trouble)

    def forget_trouble(self) -> None:
        """Before a call whose failure is explained by what it logs."""
        self._trouble.clear()
