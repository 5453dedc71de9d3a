"""A DiffusionGemma taken apart: what goes into the main file, and what into the side file."""

from collections.abc import Mapping
from dataclasses import dataclass

from dg_lsp.errors import ModelBrokenError
from dg_lsp.gguf import Tensor, Value
from dg_lsp.models.repack.names import DECODER_SCALE, LAYER_TENSORS, SELF_CONDITIONING

EMBEDDING = "token_embd.weight"


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
        return self.body_size + sum(tensor.size for tensor in self.side)

    @property
    def body_size(self) -> int:
        """Bytes of the main file's weights."""
        return sum(tensor.size for tensor in self.body)

    @property
    def embedding_kind(self) -> str:
        """Number format of the tokens' embeddings."""
        return next(tensor.kind.name for tensor in self.body if tensor.name == EMBEDDING)

    @property
    def bits(self) -> int:
        """Of a weight, where they are not quantized."""
        return 8 * next(tensor.kind.block_bytes for tensor in self.body if tensor.name == EMBEDDING)

    @property
    def is_quantized(self) -> bool:
        """Some weights are held in blocks, so that holding them otherwise would round them again."""
        return any(tensor.kind.block_weights > 1 for tensor in self.body)


def check_whole(name: str, body: Mapping[str, object], side: Mapping[str, object], num_layers: int) -> None:
    """Nothing is missing that the model computes with; `attn_v` and the layers' scale may be.

    Raises:
        ModelBrokenError: names the first tensor that is.
    """
    optional = {"attn_v.weight", f"{DECODER_SCALE}.weight"}
    needed = [EMBEDDING, "output_norm.weight", "rope_freqs.weight"]
    needed += [f"blk.{i}.{tensor}" for i in range(num_layers) for tensor in LAYER_TENSORS if tensor not in optional]
    missing = [tensor for tensor in needed if tensor not in body]
    missing += [tensor for tensor in SELF_CONDITIONING if tensor not in side]
    if missing:
        raise ModelBrokenError(
            f"{name} lacks {len(missing)} tensors of a DiffusionGemma ({missing[0]}): download or export it again"
        )
