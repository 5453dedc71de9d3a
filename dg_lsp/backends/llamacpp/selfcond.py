"""DiffusionGemma's self-conditioning: a canvas's last prediction, as soft embeddings, changes what its next pass reads.

As in Hugging Face transformers 5.23 (`DiffusionGemmaSelfConditioning`), in float32. The small network lies in a side
file next to the model: llama.cpp's `gemma4` knows nothing of it.
"""

import hashlib
import math
from pathlib import Path

import numpy as np

from dg_lsp.backends.llamacpp.failures import file_error
from dg_lsp.backends.llamacpp.tensors import Tensor
from dg_lsp.canvas.spec import SideFile
from dg_lsp.diffusion.denoiser import Floats
from dg_lsp.errors import ModelBrokenError, ModelNotFoundError, ModelUnsupportedError
from dg_lsp.weights.header import Header, read_header

_CURVE = math.sqrt(2 / math.pi)


class SelfConditioning:
    """The network: a gated MLP between two norms, H numbers wide with M inside."""

    def __init__(self, header: Header, width: int, epsilon: float) -> None:
        """`epsilon` is the model's own, of all its norms.

        Raises:
            ModelUnsupportedError: a tensor is missing, or does not fit a model so wide.
        """
        self.epsilon = np.float32(epsilon)
        norm, gate, up, down = (
            Tensor.of(header, f"self_cond.{name}").floats() for name in ("pre_norm", "gate", "up", "down")
        )
        if norm.shape != (1, width) or not gate.shape == up.shape == down.T.shape == (len(gate), width):
            raise ModelUnsupportedError(f"{header.path} does not fit its model; repack the model again")
        self.pre_norm = norm
        """Shape (1, H)."""
        self.gate_up = np.concatenate([gate, up])
        """Shape (2M, H): both read the same numbers, so one product makes them."""
        self.down = down
        """Shape (H, M)."""

    @classmethod
    def open(cls, model_path: Path, side: SideFile, width: int, epsilon: float) -> "SelfConditioning":
        """Reads the file beside the model's.

        Raises:
            ModelNotFoundError: it is not there.
            ModelUnsupportedError, ModelBrokenError, ModelError: it is another one, or damaged.
        """
        path = model_path.with_name(side.filename)
        if not path.is_file():
            raise ModelNotFoundError(
                f"{path} is missing: {model_path.name} needs it beside it; put it there or repack the model again"
            )
        try:
            with path.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise file_error(path, error) from error
        if found != side.sha256:
            raise ModelBrokenError(
                f"{path} is not the file that {model_path.name} was written with; repack the model again"
            )
        return cls(read_header(path), width, epsilon)

    def condition(self, embedded: Floats, soft: Floats | None) -> Floats:
        """What the model reads instead of its tokens' embeddings, shape (L, H).

        Args:
            embedded: the canvas's tokens, scaled as the model wants them; shape (L, H).
            soft: the last prediction, scaled likewise; None at a first step.
        """
        if soft is None:
            return self._normed(embedded)
        gate, up = np.hsplit((self._normed(soft) * self.pre_norm) @ self.gate_up.T, 2)
        return self._normed(embedded + (gelu(gate) * up) @ self.down.T)

    def _normed(self, rows: Floats) -> Floats:
        square = np.einsum("lh,lh->l", rows, rows) / np.float32(rows.shape[1])
        normed: Floats = rows / np.sqrt(square + self.epsilon)[:, None]
        return normed


def gelu(x: Floats) -> Floats:
    """The tanh approximation."""
    curve: Floats = np.float32(0.5) * x * (1 + np.tanh(np.float32(_CURVE) * (x + np.float32(0.044715) * x * x * x)))
    return curve
