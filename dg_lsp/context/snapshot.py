"""One immutable state of an editor buffer."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A buffer's text at one version; every position inside dg-lsp is a code-point offset into it."""

    uri: str
    version: int
    text: str
    language: str = "python"
    """LSP language id."""
