"""A DiffusionGemma taken apart: what goes into the main file, and what into the side file."""

from collections.abc import Mapping
from dataclasses import dataclass

from dg_lsp.errors import ModelBrokenError
from dg_lsp.models.repack.names import DECODER_SCALE, LAYER_TENSORS, SELF_CONDITIONING
from dg_lsp.weights.values import Value
from dg_lsp.weights.writing import Tensor


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything that is written, none of it read yet but metadata."""

    values: Mapping[str, Value]
    """The main file's metadata, but what names the side file."""
    body: tuple[Tensor, ...]
    side: tuple[Tensor, ...]

    @property
    def size(self) -> int:
        """Bytes of all weights."""
        return sum(tensor.size for tensor in (*self.body, *self.side))


def check_whole(name: str, body: Mapping[str, object], side: Mapping[str, object], num_layers: int) -> None:
    """Nothing is missing that the model computes with; `attn_v` and the layers' scale may be.

    Raises:
        ModelBrokenError: names the first tensor that is.
    """
    optional = {"attn_v.weight", f"{DECODER_SCALE}.weight"}
    needed = ["token_embd.weight", "output_norm.weight", "rope_freqs.weight"]
    needed += [f"blk.{i}.{tensor}" for i in range(num_layers) for tensor in LAYER_TENSORS if tensor not in optional]
    missing = [tensor for tensor in needed if tensor not in body]
    missing += [tensor for tensor in SELF_CONDITIONING if tensor not in side]
    if missing:
        raise ModelBrokenError(
            f"{name} lacks {len(missing)} tensors of a DiffusionGemma ({missing[0]}): download or export it again"
        )
