"""What is known of a checkpoint directory's weights before any is loaded. Knows no runtime."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One directory, found whole."""

    folder: Path
    special_ids: frozenset[int]
    """Tokens that are no text."""
    size_bytes: int
    """Of its weights on disk."""
    num_weights: int
    """Numbers of the text model."""
    num_vectors: int
    """Those of them that 8-bit formats leave as they are: embedding, norms, routers."""
    stored_type: str
    """`float32`, `float16` or `bfloat16`."""

    @property
    def description(self) -> str:
        """For a person."""
        return f"checkpoint of {self.num_weights / 1e9:.2f} B weights in {self.stored_type}"

    def close(self) -> None:
        """Nothing is held."""
